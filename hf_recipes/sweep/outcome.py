"""What a trial's run directory says of it: the row of the table."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.read_run import RunRecord, read_run
from hf_recipes.report.series import as_number

_MIB = 2**20
_WATCHER = "training was stopped: "  # how `training.finish` begins what a watcher said
# In names of figures: words after which less is better. All others are shares of what is right.
_LESS_IS_BETTER = ("loss", "forgetting", "seconds", "ms", "time", "nats", "perplexity", "cut", "tokens", "prose")


@dataclass(frozen=True)
class Outcome:
    """How a trial ended, and its figures; those that are not known are None.

    Attributes:
        state: ``ok``, ``pruned``, ``failed``, ``stopped`` (to be gone on with), ``left out`` or ``waiting``.
        sentence: why, for all but ``ok``.
        steps: optimizer steps done.
        target: what the table is sorted by.
        best_loss, last_loss: of the evaluations while training, nats per token.
        forgetting: rise of the loss on general text, nats per token.
        trained: trainable parameters.
        memory_mib: the most seen in a log: allocated on a GPU, resident on a CPU.
        tokens_per_second: median, padding included.
        seconds: of all attempts.
        ms_per_token: of generation, where evaluated.
    """

    state: str
    sentence: str = ""
    steps: int | None = None
    target: float | None = None
    best_loss: float | None = None
    last_loss: float | None = None
    forgetting: float | None = None
    trained: int | None = None
    memory_mib: float | None = None
    tokens_per_second: float | None = None
    seconds: float | None = None
    ms_per_token: float | None = None
    curve: list[tuple[float, float]] = field(default_factory=list)


def read_outcome(run: Path, metric: str, pruned: str | None = None) -> Outcome:
    """Read a trial's directory.

    Args:
        run: its run directory, which need not be there.
        metric: a loss of the evaluations while training (``eval_loss``, ``eval_domain_loss``), or a figure of
            evaluation.json.
        pruned: why the sweep stopped it, where it did.

    Raises:
        UserError: the run was evaluated, and its table has no such line.
    """
    record = read_run(RunDirectory(run))
    state, sentence = _state(record, pruned)
    history = record.history
    losses, memory = history.series("eval", "eval_loss").finite.values, history.series("log", "memory_gb").finite.values
    speed = history.throughput().finite.values
    seconds = as_number(history.seconds)
    return Outcome(
        state,
        sentence,
        steps=history.last_step,
        target=target_value(record, metric) if state in ("ok", "pruned") else None,
        best_loss=float(losses.min()) if len(losses) else None,
        last_loss=float(losses[-1]) if len(losses) else None,
        forgetting=_forgetting(record),
        trained=record.run.get("trainable_parameters"),
        memory_mib=float(memory.max()) * 1e9 / _MIB if len(memory) else None,
        tokens_per_second=float(np.median(speed)) if len(speed) else None,
        seconds=seconds,
        ms_per_token=_ms_per_token(record.evaluation),
        curve=loss_curve(record, metric),
    )


def _state(record: RunRecord, pruned: str | None) -> tuple[str, str]:
    code, sentence = record.status.get("code"), str(record.status.get("sentence", ""))
    if code == 0:
        return "ok", ""
    if pruned:
        return "pruned", pruned
    if code is None:
        return ("stopped", "killed, or still running") if record.run else ("waiting", "")
    if code in (75, 130):
        return "stopped", sentence
    if code == 1 and sentence.startswith(_WATCHER):
        return "pruned", f"by a watcher: {sentence.removeprefix(_WATCHER)}"
    return "failed", sentence


def loss_curve(record: RunRecord, metric: str) -> list[tuple[float, float]]:
    """(share of the run, loss) of each evaluation so far, of the metric where it is one of these, else of eval_loss."""
    planned = record.history.max_steps
    series = record.history.series("eval", metric if metric.startswith("eval_") else "eval_loss")
    if not planned:
        return []
    return [
        (step / planned, float(value)) for step, value in zip(series.steps.tolist(), series.values, strict=True) if step
    ]


def target_value(record: RunRecord, metric: str) -> float | None:
    """The metric's value: the last one of a loss while training, since that model is kept (the lowest with
    `load_best_model_at_end`), or the tuned model's in evaluation.json; None where there is none yet.

    Raises:
        UserError: the run was evaluated, and its table has no such line.
    """
    if metric.startswith("eval_"):
        values = record.history.series("eval", metric).values
        if not len(values):
            _check_name(metric, record)
            return None
        value = float(np.nanmin(values) if record.recipe.get("load_best_model_at_end") else values[-1])
        return value if math.isfinite(value) else None
    lines = evaluated(record.evaluation)
    if lines and metric_key(metric) not in lines:
        names = ", ".join(lines)
        raise UserError(
            f"--metric: the evaluation has no '{metric}'{nearest(metric_key(metric), lines)}: it has {names}."
        )
    return lines.get(metric_key(metric))


def _check_name(metric: str, record: RunRecord) -> None:
    """A run without any evaluation has no value yet; one with others never will."""
    names = [name for name in record.history.names("eval") if name.endswith("loss")]
    if names:
        raise UserError(
            f"--metric: the evaluations while training have no '{metric}'{nearest(metric, names)}: they have "
            f"{', '.join(names)}."
        )


def metric_key(name: str) -> str:
    """A metric's name without what a command line makes tiresome: ``General loss (nats)`` → ``general_loss``."""
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"\(.*?\)", "", name.lower())).strip("_")


def evaluated(evaluation: Mapping[str, Any]) -> dict[str, float]:
    """The tuned model's figures in an evaluation, by `metric_key` of their names and of what the table calls them."""
    found: dict[str, float] = {}
    figures = evaluation.get("figures")
    for figure in figures if isinstance(figures, list) else []:
        values = figure.get("values") if isinstance(figure, dict) else None
        value = as_number(values.get("tuned")) if isinstance(values, dict) else None
        if value is not None:
            names = [figure.get("name"), figure.get("label"), *(figure.get("aliases") or [])]
            found |= {metric_key(str(name)): value for name in names if name}
    return found


def less_is_better(metric: str) -> bool:
    """Whether the lowest value of a metric is the best, by its name."""
    return bool(set(metric_key(metric).split("_")) & set(_LESS_IS_BETTER))


def _forgetting(record: RunRecord) -> float | None:
    """From the evaluation; else, where the run was evaluated before its first step too, from its own general rows."""
    if (told := evaluated(record.evaluation).get("forgetting")) is not None:
        return told
    general = record.history.series("eval", "eval_general_loss").finite
    if len(general) > 1 and general.steps[0] == 0:
        return float(general.values[-1] - general.values[0])
    return None


def _ms_per_token(evaluation: Mapping[str, Any]) -> float | None:
    return evaluated(evaluation).get("ms_per_token")
