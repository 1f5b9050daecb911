"""Which rank is persistently slower than the others, from what each needs a step before they wait for each other."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from hf_recipes.callbacks.beat import Beat

_SLOW_RATIO, _SLOW_SECONDS = 1.5, 0.1
_WINDOW_STEPS, _WINDOW_SECONDS, _SLOW_WINDOWS = 10, 2.5, 3


@dataclass(frozen=True)
class SlowRank:
    """A rank persistently slower; seconds a step before ranks must wait for each other, its own and the others'."""

    rank: int
    seconds: float
    others: float
    in_data: bool


class Pace:
    """Compares what ranks need a step, over windows; three slow windows in a row are no hiccup."""

    def __init__(self) -> None:
        self.windows: dict[int, int] = {}
        self._start: tuple[Mapping[int, Beat], float] | None = None

    def see(self, beats: Mapping[int, Beat], now: float) -> SlowRank | None:
        """The slow rank, at the end of each window in which there is one and has been in the last ones."""
        if self._start is None or any(beat.steps < self._start[0][rank].steps for rank, beat in beats.items()):
            self._start = (beats, now)
            return None
        before, since = self._start
        steps = min(beat.steps - before[rank].steps for rank, beat in beats.items())
        if steps < _WINDOW_STEPS or now - since < _WINDOW_SECONDS:
            return None
        self._start = (beats, now)
        slow = _slowest(before, beats)
        self.windows = {slow.rank: self.windows.get(slow.rank, 0) + 1} if slow else {}
        return slow if slow and self.windows[slow.rank] >= _SLOW_WINDOWS else None


def _slowest(before: Mapping[int, Beat], beats: Mapping[int, Beat]) -> SlowRank | None:
    data, forward = {}, {}
    for rank, beat in beats.items():
        steps = beat.steps - before[rank].steps
        data[rank] = (beat.data_seconds - before[rank].data_seconds) / steps
        forward[rank] = (beat.forward_seconds - before[rank].forward_seconds) / steps
    busy = {rank: data[rank] + forward[rank] for rank in beats}
    worst = max(busy, key=lambda rank: busy[rank])
    if len(busy) < 2:
        return None
    others = [rank for rank in busy if rank != worst]
    usual = statistics.median(busy[rank] for rank in others)
    if busy[worst] <= _SLOW_RATIO * usual or busy[worst] - usual <= _SLOW_SECONDS:
        return None
    more_data = data[worst] - statistics.median(data[rank] for rank in others)
    return SlowRank(worst, busy[worst], usual, more_data > (busy[worst] - usual) / 2)
