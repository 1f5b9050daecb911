"""The whole way on a real small model: look at the machine, test and train by the command a user would type, look at
the run, evaluate, merge, prove, report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import CheckFailed, Preempted
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory

RECIPE = "smollm2/sft_lora"
# What a healthy run reaches with any source of the base; the quickstart fails below it.
GATE = "format>=0.9,forgetting<0.15"
RATING_SHEET = "rating.html"


@dataclass(frozen=True)
class QuickstartResult:
    """Where things are and what was reached; `evaluation` is evaluation.json, `diagnosis` what the doctor says of the
    run, `seconds` by stage."""

    run: RunDirectory
    base_source: str
    diagnosis: str
    evaluation: dict[str, Any]
    merge: Any
    seconds: dict[str, float]


def quickstart(output_dir: Path, keys: list[str]) -> QuickstartResult:
    """Test, train, verify, evaluate and merge SmolLM2-135M-Instruct on orders → JSON.

    Args:
        output_dir: The run directory to make.
        keys: Recipe keys laid over the shipped recipe.

    Raises:
        UserError: no source has the model, or the output exists.
        CheckFailed: a stage failed or the result is below the thresholds above.
    """
    clock = _Clock()
    from hf_recipes.models.smollm2 import find_smollm2
    from hf_recipes.recipe.resolve import load_recipe

    load_recipe(RECIPE, [*keys, "--output_dir", str(output_dir)])  # a wrong key is told before anything is done
    _look_at_machine()
    base = find_smollm2()
    logger.info("[1/4] Base model: SmolLM2-135M-Instruct from %s", base.source)
    clock.lap("base")
    _train(output_dir, keys)
    run = RunDirectory(output_dir)
    diagnosis = _look_at_run(run)
    clock.lap("train")

    from hf_recipes.evaluation.sheet import write_sheet_of_run
    from hf_recipes.training.evaluate import evaluate_run

    logger.info("[3/4] Evaluating base and tuned on held-out orders and general text")
    evaluation = evaluate_run(run, gate=GATE)
    logger.info("%s", write_sheet_of_run(run, run.path / RATING_SHEET))
    clock.lap("evaluate")

    from hf_recipes.export.merge import merge_adapter
    from hf_recipes.training.proof_rows import proof_rows

    logger.info("[4/4] Merging into bf16, and comparing the merged model with the adapter")
    samples = proof_rows(run)
    merged = merge_adapter(
        run.adapter,
        output=run.merged("bf16"),
        dtype="bf16",
        proof="logits",
        rows=samples.rows,
        labels=samples.labels,
        prompts=samples.prompts,
    )
    clock.lap("merge")
    _write_report(run)
    return QuickstartResult(run, base.source, diagnosis, evaluation, merged, clock.laps)


def _look_at_machine() -> None:
    """Say what is wrong with the machine, if anything; what needs torch is found by training."""
    from hf_recipes.doctor.environment.check import check_environment
    from hf_recipes.doctor.findings import render_findings

    if wrong := [each for each in check_environment(quick=True) if each.level in ("warning", "error")]:
        logger.warning("%s", render_findings(wrong))


def _look_at_run(run: RunDirectory) -> str:
    """What the doctor says of the finished training; told."""
    from hf_recipes.doctor.run.diagnosis import diagnose_run, render

    diagnosis = render(diagnose_run(run.path))
    logger.info("%s", diagnosis)
    return diagnosis


def _train(output_dir: Path, keys: list[str]) -> None:
    from hf_recipes.recipe.shipped import find_recipe
    from hf_recipes.training.launch import launch

    arguments = ["--config", str(find_recipe(RECIPE)), *keys, "--output_dir", str(output_dir)]
    logger.info("[2/4] accelerate launch -m hf_recipes.sft %s", " ".join(arguments))
    code = launch("hf_recipes.sft", arguments, output_dir)
    if code == Preempted.exit_code:
        raise Preempted(
            f"the training was asked to stop, see {output_dir / 'status.json'}: `hf-recipes sft --config {RECIPE} "
            f"--output_dir {output_dir} --resume_from_checkpoint last` finishes it, or start the quickstart anew."
        )
    if code != 0:
        raise CheckFailed(f"the training did not finish (code {code}): see {output_dir / 'status.json'}")


def _write_report(run: RunDirectory) -> None:
    from hf_recipes.report.page import write_report

    write_report(run)


def check_thresholds(evaluation: dict[str, Any]) -> None:
    """Raise `CheckFailed` when the tuned model is below what a healthy quickstart reaches: the gate above."""
    missed = [outcome["sentence"] for outcome in evaluation["gate"] if not outcome["holds"]]
    if missed:
        raise CheckFailed("the result is below that of a healthy quickstart; " + "; ".join(missed))


class _Clock:
    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now
