"""When a trial is stopped early because others were better at the same place. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# (share of the run done, from 0 to 1; loss)
Points = Sequence[tuple[float, float]]
FEWEST = 3  # finished trials that a median is taken of
EARLIEST = 0.15  # share of a run before which nothing is judged: there, warm-up decides
_SAME = 1e-9  # shares are quotients of steps


@dataclass(frozen=True)
class Stop:
    """Why a trial is stopped: its best loss so far, the median it is worse than, of how many, where."""

    best: float
    median: float
    of: int
    share: float

    def __str__(self) -> str:
        return (
            f"at {self.share:.0%} of its steps the best loss so far, {self.best:.4g}, is above the median of "
            f"{self.of} finished trials, {self.median:.4g}"
        )


def median_stop(current: Points, finished: Sequence[Points], fewest: int = FEWEST) -> Stop | None:
    """The median stopping rule: stop where the best value so far is worse than the median of the running averages that
    the finished trials had at the same place (Golovin et al. 2017, "Google Vizier", section 3.2.2).

    The place is the share of the run, not the step: trials with another batch have other steps. Non-finite losses count
    as infinite.

    Args:
        current: of the trial that runs, by ascending share.
        finished: of each trial that ended well.
        fewest: trials with a value so far that are needed.
    """
    if not current or current[-1][0] < EARLIEST:
        return None
    share = current[-1][0]
    best = min(_loss(loss) for _, loss in current)
    averages = []
    for points in finished:
        so_far = [_loss(loss) for place, loss in points if place <= share + _SAME]
        if so_far:
            averages.append(sum(so_far) / len(so_far))
    if len(averages) < fewest:
        return None
    median = statistics.median(averages)
    return Stop(best, median, len(averages), share) if best > median else None


def _loss(value: float) -> float:
    return value if value == value else float("inf")
