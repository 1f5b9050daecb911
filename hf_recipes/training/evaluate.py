"""A finished run's models side by side: the evaluation room, with the data and model rooms it needs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hf_recipes.checkpoints.lock import TakenDirectory, release_lock, take_lock
from hf_recipes.core.errors import UserError
from hf_recipes.core.links import why_leads_out
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory, find_run
from hf_recipes.evaluation.gate import Condition, parse_gate
from hf_recipes.evaluation.judging import checked_suite
from hf_recipes.evaluation.prepared import Choices
from hf_recipes.evaluation.run import evaluate_with
from hf_recipes.models.methods import bottleneck_layer as bottleneck_layer  # PEFT reads that kind once it is imported
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.report.page import write_report
from hf_recipes.training.evaluation_loaders import load_adapter, load_model, tokenise_rows
from hf_recipes.training.own_code import check_code, remember_code


def evaluate_run(
    run: RunDirectory | str | Path | None = None,
    *,
    samples: int | None = None,
    max_new_tokens: int | None = None,
    against: Sequence[str] | None = None,
    gate: str | Sequence[Condition] = (),
    num_processes: int = 1,
    fresh: bool = False,
    allow_code: bool = False,
    config: str | None = None,
) -> dict[str, Any]:
    """Compare a run's models on the `evaluation` of its recipe; writes evaluation.json and the report anew.

    Every answer is kept in ``RUN/evaluation/MODEL.jsonl``, and what is there is not asked again.

    Args:
        run: A run directory; None for the current directory or the newest run.
        samples: Rows of each set, in place of the recipe's.
        max_new_tokens: Limit of an answer, in place of the recipe's.
        against: What to compare with: ``base``, ``merged``, ``NAME=PATH`` or a path (a run, an adapter, a model, a Hub
            name). By default the base and all that was merged from this run.
        gate: Conditions such as ``"format>0.95,forgetting<0.1"``, in place of the recipe's; whether each holds is in
            ``["gate"]`` of what is returned.
        num_processes: How many processes share the rows, each with a model, and a GPU where there are any.
        fresh: Answer everything anew.
        allow_code: Run the Python function that the run's recipe names (``evaluation.function``) although no recipe
            trained on this machine named it: only where you have read it.
        config: A recipe whose `evaluation` the run is given, in run.json, in place of what it had.

    Returns:
        The content of evaluation.json; ``["figures"]`` holds all figures (`evaluation.table.render_document` shows
        them), ``["table"]`` those of base and tuned.

    Raises:
        UserError: no such run, no result in it, no ``evaluation`` in its recipe, a file of it is wrong, or it names
            Python that is not allowed.
        CheckFailed: a process failed.
    """
    directory = run if isinstance(run, RunDirectory) else find_run(run)
    if config is not None:
        _take_evaluation(directory, config)
    check_code(directory.path, directory.read(directory.run_json), allowed=allow_code)
    choices = Choices(
        samples=samples,
        max_new_tokens=max_new_tokens,
        against=None if against is None else tuple(against),
        gate=parse_gate(gate) if isinstance(gate, str) else tuple(gate),
    )
    ask_elsewhere = None
    if num_processes > 1:
        from hf_recipes.training.evaluate_share import ask_in_processes

        def ask_elsewhere() -> None:
            ask_in_processes(directory, choices, num_processes)

    with _alone(directory):
        evaluation = evaluate_with(
            directory,
            tokenise_rows,
            load_model=load_model,
            load_adapter=load_adapter,
            choices=choices,
            fresh=fresh,
            ask_elsewhere=ask_elsewhere,
        )
    write_report(directory)
    return evaluation


def _take_evaluation(run: RunDirectory, config: str) -> None:
    """Write a recipe's `evaluation` into the run's record, where whatever is done with the run later finds it."""
    recipe = load_recipe(config)
    evaluation = recipe.get("evaluation")
    if not evaluation:
        raise UserError(
            f"--config: recipe '{recipe.name}' has no evaluation: write e.g. evaluation: {{domain: held_out.jsonl, "
            "general: general.jsonl} into it."
        )
    checked_suite(evaluation)
    facts = run.read(run.run_json)
    before = (facts.get("recipe") or {}).get("evaluation")
    if evaluation == before:
        return
    facts["recipe"] = {**(facts.get("recipe") or {}), "evaluation": evaluation}
    run.write(run.run_json, facts)
    remember_code(evaluation)
    instead = " in place of the one it had" if before else ""
    logger.info("The evaluation of %s stands in %s now%s.", config, run.run_json, instead)


@contextlib.contextmanager
def _alone(run: RunDirectory) -> Iterator[None]:
    """Two evaluations of one run, each with settings of its own, would write into the same answer files."""
    answers = run.path / "evaluation"
    root = run.path.resolve()
    for place in (answers, *answers.glob("*")):
        if reason := why_leads_out(root, place):
            raise UserError(f"{place} {reason}, and answers are written there: delete the link.")
    try:
        take_lock(answers)
    except TakenDirectory:
        raise UserError(f"Another evaluation of {run.path} is at work: wait for it, or end it.") from None
    try:
        yield
    finally:
        release_lock(answers)
        with contextlib.suppress(OSError):
            answers.rmdir()  # where nothing was answered
