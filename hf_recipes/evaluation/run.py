"""Evaluates a finished run: its models side by side, written to the run's ``evaluation.json``."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_recipes.core.errors import CheckFailed
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.evaluation.asking import Share, ask, judged, row_key
from hf_recipes.evaluation.document import document
from hf_recipes.evaluation.kept import KeptAnswers, Line
from hf_recipes.evaluation.prepared import (
    Choices,
    Evaluation,
    Loaders,
    TokeniseRows,
    load_causal_lm,
    load_peft_adapter,
    prepare_evaluation,
)
from hf_recipes.evaluation.sides import LoadAdapter, LoadModel, Side, with_each_model


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
