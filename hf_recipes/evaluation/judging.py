"""The judges that a suite asks for, over one line of kept answers at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.gate import check_names
from hf_recipes.evaluation.judges.choices import judge_choice, read_choices
from hf_recipes.evaluation.judges.custom import load_score
from hf_recipes.evaluation.judges.formats import FormatVerdict, format_check
from hf_recipes.evaluation.judges.text import TEXT_SCORES
from hf_recipes.evaluation.measures import OWN_NAMES, names_beforehand
from hf_recipes.evaluation.rows import DomainRow, InstructionRow, read_instruction_rows
from hf_recipes.evaluation.scoring import SchemaValidator, judge
from hf_recipes.evaluation.suite import EvaluationSuite
from hf_recipes.evaluation.task_lines import check_tasks

Judged = dict[str, Any]


@dataclass(frozen=True)
class Judges:
    """Ready to judge: built once, before any model is loaded."""

    suite: EvaluationSuite
    validator: SchemaValidator | None
    format: Callable[[str], FormatVerdict] | None
    function: Callable[[str, str, Mapping[str, Any]], dict[str, float]] | None

    @classmethod
    def of(cls, suite: EvaluationSuite) -> Judges:
        """The judges of a suite.

        Raises:
            UserError: a format that is none, a function that cannot be loaded, or a package that a score needs.
        """
        spec = suite.format_spec
        for name in suite.scores:  # a package that is missing is told now
            TEXT_SCORES[name]("a", ["a"])
        check_tasks(suite.tasks)
        return cls(
            suite=suite,
            validator=suite.validator(),
            format=None if spec is None else format_check(spec),
            function=None if suite.function is None else load_score(suite.function),
        )

    def domain(self, answer: str, row: DomainRow) -> Judged:
        """``scores``, numbers by name, and ``verdicts`` of one domain answer."""
        references = [row.reference, *row.references]
        verdicts = asdict(judge(answer, row.reference, self.validator))
        if self.format is not None:
            verdicts["format"] = asdict(self.format(answer))
        scores: dict[str, float] = {}
        for name in self.suite.scores:
            scores |= TEXT_SCORES[name](answer, references)
        if self.function is not None:
            scores |= self._own_scores(answer, row, scores)
        return {"scores": scores, "verdicts": verdicts}

    def _own_scores(self, answer: str, row: DomainRow, others: Mapping[str, float]) -> dict[str, float]:
        assert self.function is not None
        own = self.function(answer, row.reference, {"number": row.number, **row.given})
        if taken := sorted(set(own) & (set(others) | OWN_NAMES)):
            raise UserError(
                f"{self.suite.function} returns '{taken[0]}', which a figure of the evaluation is named: rename it."
            )
        return own


def checked_suite(settings: Mapping[str, Any] | None) -> EvaluationSuite | None:
    """The suite of a recipe's ``evaluation:``, found well-formed (see `check_suite`); None where there is none."""
    if not settings:
        return None
    suite = EvaluationSuite.from_dict(settings)
    check_suite(suite)
    return suite


def check_suite(suite: EvaluationSuite) -> None:
    """Read every file of a suite and look for all that it needs, but run no code of the user's: before a training.

    Raises:
        UserError: a row is ill-formed, the format is none, a package is missing, or the gate names no figure.
    """
    suite.rows()
    if suite.instructions is not None:
        read_instruction_rows(suite.instructions)
    if suite.choices is not None:
        read_choices(suite.choices)
    Judges.of(replace(suite, function=None))
    if (names := names_beforehand(suite)) is not None:
        check_names(suite.gate, names)


def judge_instructions(answer: str, row: InstructionRow) -> Judged:
    """Shares of the instructions followed, as sums with their count, and whether all are; strict and lenient."""
    from hf_recipes.evaluation.judges.instructions import check_instructions

    verdicts = check_instructions(answer, [row.given])
    strict, lenient = [each.strict for each in verdicts], [each.lenient for each in verdicts]
    scores = {
        "instructions": [float(sum(strict)), float(len(strict))],
        "instructions_lenient": [float(sum(lenient)), float(len(lenient))],
        "prompts": float(all(strict)),
        "prompts_lenient": float(all(lenient)),
    }
    return {"scores": scores, "verdicts": {"instructions": [asdict(each) for each in verdicts]}}


def judge_choices(line: Mapping[str, Any]) -> Judged:
    """Whether the likeliest choice is the right one."""
    lengths = [len(choice.encode("utf-8", "replace")) for choice in line["choices"]]
    likelihoods = [float(each) for each in line["loglikelihoods"]]
    return {"scores": judge_choice(likelihoods, lengths, line["answer_index"]), "verdicts": {}}
