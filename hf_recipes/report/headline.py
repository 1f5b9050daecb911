"""The few numbers that a reader looks for first, for tiles, tables and the terminal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hf_recipes.report.history import History
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.scale import NOTHING, duration, number
from hf_recipes.report.series import Series, as_number
from hf_recipes.report.verdict import verdict


@dataclass(frozen=True)
class Figure:
    """A number with its name, and what else belongs to it (the step, the steps planned)."""

    name: str
    shown: str
    detail: str = ""

    @property
    def label(self) -> str:
        """Name and detail."""
        return f"{self.name} ({self.detail})" if self.detail else self.name


def headline(record: RunRecord, now: float | None = None) -> list[Figure]:
    """Where the run is, its losses, its speed, its alarms, and, while it goes on at `now` (Unix seconds), how long."""
    history = record.history
    loss, eval_loss = history.series("log", "loss"), history.series("eval", "eval_loss")
    speed = history.throughput().finite.values
    left = remaining_seconds(history) if verdict(record, now).word == "Running" else None
    return [
        Figure(
            "steps",
            NOTHING if history.last_step is None else str(history.last_step),
            f"of {history.max_steps}" if history.max_steps else "",
        ),
        Figure("training loss", _last(loss), "last"),
        Figure("eval loss", _last(eval_loss), "last"),
        _best(eval_loss),
        Figure("tokens per second", number(float(np.median(speed))) if len(speed) else NOTHING, "median"),
        Figure("time", NOTHING if history.seconds is None else duration(history.seconds)),
        *([Figure("time left", duration(left), "about")] if left is not None else []),
        Figure("alarms", str(len(history.alarms()))),
    ]


def _last(series: Series) -> str:
    """The newest value, also when it is not finite."""
    return number(float(series.values[-1])) if len(series) else NOTHING


def _best(series: Series) -> Figure:
    """The lowest evaluation loss, and its step."""
    finite = series.finite
    if not len(finite):
        return Figure("best eval loss", NOTHING)
    place = int(finite.values.argmin())
    return Figure("best eval loss", number(float(finite.values[place])), f"step {finite.steps[place]}")


def remaining_seconds(history: History) -> float | None:
    """Time to the planned end at the pace since the newest attempt began; None where it cannot be told."""
    begins = history.of_kind("begin")
    began = as_number(begins[-1].get("time")) if begins else None
    if began is None or history.max_steps is None or history.last_step is None:
        return None
    done, passed = history.last_step - begins[-1]["step"], history.last_time - began
    return passed / done * (history.max_steps - history.last_step) if done > 0 and passed > 0 else None
