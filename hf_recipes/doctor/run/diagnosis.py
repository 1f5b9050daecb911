"""A case in, its causes out, ranked; and how they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.doctor.run.case import Case
from hf_recipes.doctor.run.cause import SPOILS, Cause
from hf_recipes.doctor.run.curve_rules import (
    on_divergence,
    on_no_signal,
    on_not_finite,
    on_overfitting,
    on_schedule,
    on_stuck,
)
from hf_recipes.doctor.run.other_rules import (
    on_checkpoints,
    on_data,
    on_end,
    on_missed_gate,
    on_other_alarms,
    on_preflight,
    on_ranks,
    on_speed,
)
from hf_recipes.doctor.run.read_case import read_case

RULES: tuple[Callable[[Case], Iterator[Cause]], ...] = (
    on_not_finite, on_no_signal, on_divergence, on_stuck, on_overfitting, on_schedule,
    on_preflight, on_end, on_missed_gate, on_ranks, on_data, on_speed, on_checkpoints, on_other_alarms,
)  # fmt: skip


_EXPLAINS = 80


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a run: a line of how it went, its causes, the weightiest first, and how many logs it has."""

    name: str
    summary: str
    causes: tuple[Cause, ...]
    problems: tuple[str, ...] = ()
    logs: int = 0

    @property
    def healthy(self) -> bool:
        """Nothing spoils it."""
        return all(cause.weight < SPOILS for cause in self.causes)

    def as_values(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "schema": 1,
            "run": self.name,
            "healthy": self.healthy,
            "summary": self.summary,
            "causes": [cause.as_values() for cause in self.causes],
            "problems": list(self.problems),
            "logs": self.logs,
        }


def diagnose_run(path: Path | str) -> Diagnosis:
    """Name the causes of what is wrong with a run, ranked by what speaks for them.

    Args:
        path: a run directory, or the output directory of any Hugging Face trainer (``trainer_state.json``).

    Raises:
        UserError: it is neither.
    """
    return diagnose(read_case(Path(path)))


def diagnose(case: Case) -> Diagnosis:
    """Judge a case."""
    causes = [cause for rule in RULES for cause in rule(case)]
    if any(cause.weight >= _EXPLAINS for cause in causes):  # then that it stopped is no cause of its own
        causes = [cause for cause in causes if cause.name != "stopped"]
    ranked = tuple(sorted(causes, key=lambda cause: -cause.weight))
    logs = case.replay.losses + case.replay.evaluations
    return Diagnosis(case.name, summary(case), ranked, case.problems, logs)


def summary(case: Case) -> str:
    """How the run went, in a line."""
    replay = case.replay
    planned = f" of {case.settings.max_steps}" if case.settings.max_steps else ""
    if not replay.losses + replay.evaluations and case.alarms:  # watchers in somebody's own script
        return (
            f"alarms up to step {max(alarm.step for alarm in case.alarms)} and no curves, which EventLogCallback keeps"
        )
    parts = [f"{replay.last_step}{planned} steps"]
    if replay.first_loss is not None and replay.last_loss is not None:
        parts.append(f"loss {replay.first_loss:.4g} → {replay.last_loss:.4g}")
    if replay.last_eval is not None and replay.overfit.best_eval_loss is not None:
        parts.append(f"eval loss {replay.last_eval:.4g} (best {replay.overfit.best_eval_loss:.4g})")
    elif replay.losses:
        parts.append("no evaluation, so overfitting cannot be seen")
    if replay.peak_rate:
        parts.append(f"learning rate up to {replay.peak_rate:.3g}")
    if case.ended and case.code == 0:
        parts.append(case.ended)
    return ", ".join(parts)


def render(diagnosis: Diagnosis) -> str:
    """For a terminal."""
    lines = [f"{diagnosis.name}: {diagnosis.summary}", *(f"not read: {one}" for one in diagnosis.problems)]
    if not diagnosis.causes:
        healthy = "Healthy: nothing speaks against this run."
        return "\n".join([*lines, healthy if diagnosis.logs else "No loss is logged yet: nothing can be said."])
    if diagnosis.healthy:
        lines.append("Healthy on the whole; what could be better:")
    for number, cause in enumerate(diagnosis.causes, 1):
        lines.append(f"{number}. {cause.sentence}")
        lines += [f"   speaks for it: {one}" for one in cause.evidence]
        lines.append(f"   change: {cause.change}")
    return "\n".join(lines)
