"""What looks at a trial while it runs, and says when to stop it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.read_run import RunReader
from hf_recipes.sweep.median import Points, median_stop
from hf_recipes.sweep.outcome import loss_curve

_LOOK_SECONDS = 2.0


@dataclass
class Pruner:
    """Asks `judge` about the losses of a running trial, (share of its run, loss), whenever there is a new one.

    `reason` is why it is to be stopped, None so far.
    """

    metric: str
    judge: Callable[[Points], str | None]
    reason: str | None = None
    _reader: RunReader | None = None
    _seen: int = 0
    _looked: float = field(default=-_LOOK_SECONDS)

    def looks_bad(self, run: Path) -> bool:
        """Whether to stop the trial that writes into `run`."""
        if time.monotonic() - self._looked < _LOOK_SECONDS or not run.is_dir():
            return False
        self._looked = time.monotonic()
        self._reader = self._reader or RunReader(RunDirectory(run))
        points = loss_curve(self._reader.read(), self.metric)
        if len(points) == self._seen or (points and points[-1][0] >= 1):
            return False
        self._seen = len(points)
        self.reason = self.judge(points)
        return self.reason is not None


def never() -> Pruner:
    """Stops nothing: the watchers of the runs do that by themselves."""
    return Pruner("eval_loss", lambda points: None)


def median_pruner(metric: str, finished: Sequence[Points]) -> Pruner:
    """By the median stopping rule, against the trials that have ended well."""

    def judge(points: Points) -> str | None:
        stop = median_stop(points, finished)
        return str(stop) if stop else None

    return Pruner(metric, judge)


def study_pruner(metric: str, study: Any, trial: Any) -> Pruner:
    """By the pruner of an Optuna study; a trial of an earlier call, known by its number alone, is let be."""
    reported: set[int] = set()

    def judge(points: Points) -> str | None:
        if isinstance(trial, int):
            return None
        fresh = [(round(100 * share), loss) for share, loss in points if round(100 * share) not in reported]
        reported.update(place for place, _ in fresh)
        if not study.should_prune(trial, fresh):
            return None
        return f"at {points[-1][0]:.0%} of its steps Hyperband gave its steps to others (loss {points[-1][1]:.4g})"

    return Pruner(metric, judge)
