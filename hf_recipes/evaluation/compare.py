"""Scores of one model, and two models' scores side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.generation import generate_answers
from hf_recipes.core.tables import render_table
from hf_recipes.evaluation.general import TextLoss, TokenisedRow, mean_loss
from hf_recipes.evaluation.scoring import DomainScores, Verdict, judge, tally
from hf_recipes.evaluation.suite import DomainRow, EvaluationSuite

TableRow = tuple[str, str, str]


@dataclass(frozen=True)
class Scores:
    """One model on the three sets. ``cut`` counts answers that met the token limit without ending."""

    domain: DomainScores
    general: TextLoss | None
    answers: list[str]
    verdicts: list[Verdict]
    cut: int
    seconds_per_answer: float
    tokens_per_second: float


def evaluate_model(
    model: Any,
    tokenizer: Any,
    suite: EvaluationSuite,
    general_rows: Sequence[TokenisedRow] = (),
    rows: Sequence[DomainRow] | None = None,
) -> Scores:
    """Answer the suite's domain rows, judge the answers, and take the loss on `general_rows`.

    Args:
        model: a causal LM or PEFT model, with its adapters on or off as they are to be evaluated.
        tokenizer: with the chat template that the model was trained with.
        general_rows: tokenised general text; none leaves the loss out.
        rows: domain rows already read by ``suite.rows()``, so that two models answer one reading of the file.
    """
    rows = suite.rows() if rows is None else rows
    validator = suite.validator()
    generations = generate_answers(
        model,
        tokenizer,
        [row.messages for row in rows],
        max_new_tokens=suite.max_new_tokens,
        batch_size=suite.batch_size,
    )
    verdicts = [judge(answer, row.reference, validator) for answer, row in zip(generations.answers, rows, strict=True)]
    return Scores(
        domain=tally(verdicts),
        general=mean_loss(model, general_rows),
        answers=generations.answers,
        verdicts=verdicts,
        cut=generations.cut,
        seconds_per_answer=generations.seconds_per_answer,
        tokens_per_second=generations.tokens_per_second,
    )


def forgetting(base: Scores, tuned: Scores) -> float | None:
    """Rise of the loss on general text, in nats per token; None without general text."""
    if base.general is None or tuned.general is None:
        return None
    return tuned.general.nats_per_token - base.general.nats_per_token


def compare(base: Scores, tuned: Scores) -> list[TableRow]:
    """The table's rows: what is measured, base, tuned. A question that no row asks has no row here."""
    shares = [
        ("JSON that parses", base.domain.parses, tuned.domain.parses),
        ("JSON that fits the schema", base.domain.fits_schema, tuned.domain.fits_schema),
        ("fields exactly right", base.domain.fields_right, tuned.domain.fields_right),
        (_exact_name(tuned.domain), base.domain.exact, tuned.domain.exact),
    ]
    table = [(name, f"{a:.1%}", f"{b:.1%}") for name, a, b in shares if a is not None and b is not None]
    if base.general is not None and tuned.general is not None:
        before, after = base.general.nats_per_token, tuned.general.nats_per_token
        table.append(("loss on general text", f"{before:.3f}", f"{after:.3f}"))
        table.append(("forgetting (tuned - base)", "", f"{after - before:+.3f}"))
    table.append(("seconds per answer", f"{base.seconds_per_answer:.2f}", f"{tuned.seconds_per_answer:.2f}"))
    return table


def _exact_name(domain: DomainScores) -> str:
    return "answers exactly right" if domain.fields_right is None else "all fields right"


def render(table: Sequence[TableRow]) -> str:
    """The table as text for the terminal."""
    return render_table(("", "base", "tuned"), table)
