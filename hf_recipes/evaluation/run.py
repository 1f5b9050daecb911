"""Evaluates a finished run: its models side by side, written to the run's ``evaluation.json``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.evaluation.asking import Questions, Share, ask, judged, row_key
from hf_recipes.evaluation.document import document
from hf_recipes.evaluation.gate import Condition, check_names
from hf_recipes.evaluation.identity import model_identity
from hf_recipes.evaluation.judges.choices import read_choices
from hf_recipes.evaluation.judging import Judges
from hf_recipes.evaluation.kept import KeptAnswers, Line
from hf_recipes.evaluation.likelihood import TokenisedRow, supervised_tokens
from hf_recipes.evaluation.measures import names_beforehand
from hf_recipes.evaluation.rows import draw, read_instruction_rows
from hf_recipes.evaluation.sides import LoadAdapter, LoadModel, Side, find_sides, with_each_model
from hf_recipes.evaluation.suite import EvaluationSuite

TokeniseRows = Callable[[Path, Any], list[TokenisedRow]]


@dataclass(frozen=True)
class Choices:
    """What a call of the verb changes.

    Args:
        samples, max_new_tokens: in place of the recipe's.
        against: see `sides.find_sides`.
        gate: conditions in place of the recipe's.
    """

    samples: int | None = None
    max_new_tokens: int | None = None
    against: tuple[str, ...] | None = None
    gate: tuple[Condition, ...] = ()


@dataclass(frozen=True)
class Loaders:
    """What the evaluation needs of other rooms.

    Args:
        rows: turns the file of general rows into token ids and labels with a tokenizer.
        model: ``(name or path, revision, dtype name) -> model``.
        adapter: ``(model, directory) -> model with the adapter``.
    """

    rows: TokeniseRows
    model: LoadModel
    adapter: LoadAdapter


@dataclass(frozen=True)
class Evaluation:
    """An evaluation checked and ready: its suite and judges, its models and what each is asked."""

    run: RunDirectory
    judges: Judges
    sides: tuple[Side, ...]
    tokenizers: Mapping[str, Any]
    questions: Mapping[str, Questions]
    dtype: str
    gate: tuple[Condition, ...]

    @property
    def suite(self) -> EvaluationSuite:
        return self.judges.suite

    @property
    def reference(self) -> str:
        """The model that the others are compared with."""
        return self.sides[0].name

    def kept(self, side: Side) -> KeptAnswers:
        """The answer file of a model."""
        models = {
            "model": model_identity(side.model, side.revision),
            "adapter": None if side.adapter is None else model_identity(side.adapter, None),
            "tokenizer": model_identity(side.tokenizer, None),
        }
        suite = self.suite
        asked = {"dtype": self.dtype, "max_new_tokens": suite.max_new_tokens, "stop": list(suite.stop)}
        path = self.run.path / "evaluation" / f"{side.name}.jsonl"
        return KeptAnswers(path, {"models": models, "asked": asked})


def evaluate_with(
    run: RunDirectory,
    tokenise_rows: TokeniseRows,
    *,
    samples: int | None = None,
    max_new_tokens: int | None = None,
    load_model: LoadModel | None = None,
    load_adapter: LoadAdapter | None = None,
    choices: Choices | None = None,
    fresh: bool = False,
    ask_elsewhere: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Compare the run's models on the suite of its recipe; write and return ``evaluation.json``.

    What was answered before is read from ``RUN/evaluation/`` and not asked again. One model is in memory at a time;
    an adapter is put on the base that is there already. The run's models use the tokenizer and the template of the
    training.

    Args:
        run: a finished run.
        tokenise_rows: see `Loaders`.
        samples, max_new_tokens: in place of the suite's.
        load_model: see `Loaders`; by default plain `from_pretrained`.
        load_adapter: see `Loaders`; by default PEFT's.
        choices: everything else that a call may change, in place of `samples` and `max_new_tokens`.
        fresh: answer everything anew.
        ask_elsewhere: asks what is missing in other processes, each by `ask_share`.

    Raises:
        UserError: the recipe has no ``evaluation``, the suite is ill-formed, there is no result, or a model is absent.
        CheckFailed: another process left rows unanswered.
    """
    started = time.perf_counter()
    loaders = Loaders(tokenise_rows, load_model or load_causal_lm, load_adapter or load_peft_adapter)
    evaluation = prepare_evaluation(run, loaders, choices or Choices(samples, max_new_tokens))
    kept = {side.name: evaluation.kept(side) for side in evaluation.sides}
    done = {name: file.collect(fresh=fresh) for name, file in kept.items()}
    missing = [side for side in evaluation.sides if set(evaluation.questions[side.name].keys()) - set(done[side.name])]
    _tell(evaluation, done)
    if missing and ask_elsewhere is not None:
        ask_elsewhere()
        done = {name: file.collect() for name, file in kept.items()}
    elif missing:
        _ask(evaluation, missing, loaders, {side.name: kept[side.name].append for side in missing}, done, Share())
        done = {name: file.read() for name, file in kept.items()}
    lines = {side.name: _in_order(evaluation, side, done[side.name]) for side in evaluation.sides}
    for name, some in lines.items():
        kept[name].write(some)
    return document(evaluation, lines, time.perf_counter() - started)


def ask_share(run: RunDirectory, loaders: Loaders, choices: Choices, share: Share) -> None:
    """Ask this process's share of what is not answered yet, and append the answers to its own files.

    The files must not change meanwhile but by other shares.
    """
    evaluation = prepare_evaluation(run, loaders, choices)
    kept = {side.name: evaluation.kept(side) for side in evaluation.sides}
    done = {name: file.read() for name, file in kept.items()}

    def writer(file: KeptAnswers) -> Callable[[list[Line]], None]:
        return lambda lines: file.append(lines, share.rank)

    missing = [side for side in evaluation.sides if set(evaluation.questions[side.name].keys()) - set(done[side.name])]
    _ask(evaluation, missing, loaders, {name: writer(file) for name, file in kept.items()}, done, share)


def prepare_evaluation(run: RunDirectory, loaders: Loaders, choices: Choices) -> Evaluation:
    """Check and read everything that an evaluation needs, short of the models' weights.

    Raises:
        UserError: see `evaluate_with`.
    """
    facts = run.read(run.run_json)
    suite = suite_of(run, facts, choices)
    judges = Judges.of(suite)
    sides = find_sides(run, facts, choices.against)
    gate = choices.gate or suite.gate
    _check_gate(gate, suite, sides)
    common = Questions(
        domain=suite.rows(),
        instructions=[]
        if suite.instructions is None
        else draw(read_instruction_rows(suite.instructions), suite.samples),
        choices=[] if suite.choices is None else draw(read_choices(suite.choices), suite.samples),
        tasks=suite.tasks,
        documents=suite.samples,
    )
    for row in common.domain[:1]:  # a judge that fails, such as the user's own function, is told now
        judges.domain(row.reference, row)
    tokenizers = {place: _load_tokenizer(place) for place in dict.fromkeys(side.tokenizer for side in sides)}
    general = {place: _general_rows(suite, loaders.rows, tokenizer) for place, tokenizer in tokenizers.items()}
    questions = {side.name: replace(common, general=general[side.tokenizer]) for side in sides}
    return Evaluation(run, judges, tuple(sides), tokenizers, questions, compute_dtype(), gate)


def compute_dtype() -> str:
    """The dtype to evaluate in: bf16 where the hardware computes in it, else fp16 on a GPU, fp32 on a CPU."""
    import torch

    if torch.cuda.is_available():
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float16"
    return "bfloat16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "float32"


def load_causal_lm(name_or_path: str, revision: str | None, dtype: str) -> Any:
    """A causal LM by `from_pretrained`; one that cannot be found is a `UserError`."""
    from transformers import AutoModelForCausalLM

    try:
        return AutoModelForCausalLM.from_pretrained(name_or_path, revision=revision, dtype=dtype)
    except OSError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"Model '{name_or_path}' cannot be loaded ({reason}): put it back or restore access.") from None


def load_peft_adapter(model: Any, directory: Path) -> Any:
    """The adapter of `directory` on `model`, as PEFT loads it."""
    from peft import PeftModel

    return PeftModel.from_pretrained(model, directory)


def suite_of(run: RunDirectory, facts: Mapping[str, Any], choices: Choices) -> EvaluationSuite:
    """The suite of a run's recipe, with what the call changes.

    Raises:
        UserError: the recipe has none, or it is ill-formed.
    """
    recipe = facts.get("recipe") if isinstance(facts, Mapping) else None
    settings = recipe.get("evaluation") if isinstance(recipe, Mapping) else None
    if not settings:
        raise UserError(
            f"The recipe of {run.path} has no 'evaluation': add e.g. evaluation: {{domain: held_out.jsonl, "
            "schema: answer.schema.json, general: general.jsonl} to the recipe or to 'recipe' in run.json."
        )
    suite = EvaluationSuite.from_dict(settings)
    samples, max_new_tokens = choices.samples or suite.samples, choices.max_new_tokens or suite.max_new_tokens
    return replace(suite, samples=samples, max_new_tokens=max_new_tokens)


def _ask(
    evaluation: Evaluation,
    sides: Sequence[Side],
    loaders: Loaders,
    write: Mapping[str, Callable[[list[Line]], None]],
    done: Mapping[str, Mapping[str, Line]],
    share: Share,
) -> None:
    def use(side: Side, model: Any) -> None:
        tokenizer, questions = evaluation.tokenizers[side.tokenizer], evaluation.questions[side.name]
        ask(model, tokenizer, evaluation.judges, questions, done[side.name], write[side.name], share)

    with_each_model(sides, evaluation.dtype, loaders.model, loaders.adapter, use)


def _in_order(evaluation: Evaluation, side: Side, lines: Mapping[str, Line]) -> list[Line]:
    """The lines of a model in the order of the questions, judged by the present judges."""
    questions = evaluation.questions[side.name]
    keys = questions.keys()
    if missing := [key for key in keys if key not in lines]:
        raise CheckFailed(f"{len(missing)} of {len(keys)} rows of {side.name} were not answered: run the verb again.")
    answers = [judged(lines[row_key(row)], row, evaluation.judges) for row in questions.generated]
    return [*answers, *(lines[key] for key in keys[len(answers) :])]


def _tell(evaluation: Evaluation, done: Mapping[str, Mapping[str, Line]]) -> None:
    for side in evaluation.sides:
        questions = evaluation.questions[side.name]
        keys = questions.keys()
        there = len(set(keys) & set(done[side.name]))
        known = f", {there} of {len(keys)} answered before" if there else ""
        what = f"{len(questions.generated)} answers, loss on {len(questions.general)} general rows"
        what += f", {len(questions.choices)} choices" if questions.choices else ""
        logger.info(f"Evaluating {side.name}: {what} ({evaluation.dtype}{known}).")
        if dropped := len(set(done[side.name]) - set(keys)):
            logger.info(f"{dropped} answers to rows that are not asked now are dropped.")


def _check_gate(gate: Sequence[Condition], suite: EvaluationSuite, sides: Sequence[Side]) -> None:
    """A name that cannot be right is told before an hour of answers."""
    if gate and (names := names_beforehand(suite)) is not None:
        check_names(gate, names, [side.name for side in sides])


def _load_tokenizer(place: str) -> Any:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(place)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        if not Path(place).exists():
            raise UserError(f"'{place}' is not here, nor can it be had from the Hub ({reason}): name a path.") from None
        raise UserError(f"{place} holds no tokenizer ({reason}): copy that of the training into it.") from None
    if tokenizer.chat_template is None:
        raise UserError(f"The tokenizer in {place} has no chat template: put that of the training into it.")
    return tokenizer


def _general_rows(suite: EvaluationSuite, tokenise_rows: TokeniseRows, tokenizer: Any) -> Sequence[TokenisedRow]:
    if suite.general is None:
        return []
    rows = [row for row in tokenise_rows(suite.general, tokenizer) if supervised_tokens(row["labels"])]
    if not rows:
        raise UserError(f"{suite.general} gives no row to take a loss on: evaluation.general needs at least one.")
    return draw(rows, suite.samples)
