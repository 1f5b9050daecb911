"""The pure detector behind `MemoryWatch`: memory whose floors keep rising."""

from __future__ import annotations

import itertools
import math
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["warming_up", "steady", "leak"]

# A rise is part of a leak when it is at least this share of the mean rise: one step change, or growth that dies down as
# allocators do, has rises far below its mean.
_EVENNESS = 1 / 3


@dataclass(frozen=True)
class MemoryVerdict:
    """What one step's memory was. `first` marks the first verdict of its kind in a row: the one worth an alarm.
    `bytes_a_step` is the rate of the last floors (0 while there are too few of them)."""

    kind: Kind
    first: bool
    bytes_a_step: float = 0.0


# How many times slower a leak the second detector of `leak_detectors` looks for, over as many times more steps.
_SLOWER = 8


def leak_detectors() -> tuple[MemoryGrowth, MemoryGrowth]:
    """One for leaks of a megabyte a step, found within 43 steps, and one for those eight times slower, within 351."""
    quick = MemoryGrowth()
    slow = MemoryGrowth(
        quick.window * _SLOWER, least_share=quick.least_share / _SLOWER, least_bytes=quick.least_bytes / _SLOWER
    )
    return quick, slow


class MemoryGrowth:
    """Takes one number a step and says whether it leaks.

    The floor of a window of `window` steps is its minimum: work that comes and goes (long rows, evaluation, saving)
    does not lift it. A leak is `rises` floors in a row above the one before, evenly, and together by at least
    `least_share` of the level or `least_bytes` a step, whichever is less. So a steady leak is seen at most
    7.3 windows after it began (the first rise may be too small a part of one): 43 steps by default.
    """

    def __init__(
        self,
        window: int = 6,
        rises: int = 6,
        warmup: int = 16,
        least_share: float = 0.0025,
        least_bytes: float = 1e6,
    ) -> None:
        self.window, self.rises, self.warmup = window, rises, warmup
        self.least_share, self.least_bytes = least_share, least_bytes
        self.seen = 0
        self.floor = math.inf
        self.in_window = 0
        self.floors: deque[float] = deque(maxlen=rises + 1)
        self.told = False

    def judge(self, used: float) -> MemoryVerdict:
        """Judge one step's memory in bytes; what is not finite is passed over."""
        if not math.isfinite(used):
            return self._verdict("steady")
        self.seen += 1
        if self.seen <= self.warmup:
            return self._verdict("warming_up")
        self.floor = min(self.floor, used)
        self.in_window += 1
        if self.in_window < self.window:
            return self._verdict("leak" if self.told else "steady")
        self.floors.append(self.floor)
        self.floor, self.in_window = math.inf, 0
        if self._leaks():
            first, self.told = not self.told, True
            return MemoryVerdict("leak", first, self.rate())
        if self.rate() < self._least_rate() / 2:  # half: a leak near the limit is one series, not many
            self.told = False
        return self._verdict("leak" if self.told else "steady")

    def rate(self) -> float:
        """Bytes a step by which the floors rose."""
        if len(self.floors) <= self.rises:
            return 0.0
        return (self.floors[-1] - self.floors[0]) / (self.window * self.rises)

    def _least_rate(self) -> float:
        return min(self.least_share * abs(self.floors[0]), self.least_bytes)

    def _leaks(self) -> bool:
        rate = self.rate()
        if rate <= 0 or rate < self._least_rate():
            return False
        floors = list(self.floors)
        smallest = min(later - earlier for earlier, later in itertools.pairwise(floors))
        return smallest >= _EVENNESS * rate * self.window

    def _verdict(self, kind: Kind) -> MemoryVerdict:
        return MemoryVerdict(kind, False, self.rate())

    def state_dict(self) -> dict[str, Any]:
        """Everything seen, as JSON-safe data."""
        return {
            "seen": self.seen,
            "floor": self.floor if self.in_window else None,
            "in_window": self.in_window,
            "floors": list(self.floors),
            "told": self.told,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave; thresholds are not part of it."""
        self.seen, self.in_window, self.told = state["seen"], state["in_window"], state["told"]
        self.floor = math.inf if state["floor"] is None else state["floor"]
        self.floors.clear()
        self.floors.extend(state["floors"])
