"""What was measured of a collective, and what a message of another size would take: numbers in, numbers out.

Algorithm and bus bandwidth as nccl-tests defines them (doc/PERFORMANCE.md there): the algorithm bandwidth is S/t; the
bus bandwidth is that times what the busiest link must carry of S, so that it can be held against the hardware's figure
whatever the number of ranks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast"]

# Collective → share of S that each rank's link carries, by the number of ranks.
_ON_THE_BUS: dict[Collective, Callable[[int], float]] = {
    "all_reduce": lambda ranks: 2 * (ranks - 1) / ranks,
    "all_gather": lambda ranks: (ranks - 1) / ranks,
    "reduce_scatter": lambda ranks: (ranks - 1) / ranks,
    "broadcast": lambda ranks: 1.0,
}
COLLECTIVES: tuple[Collective, ...] = tuple(_ON_THE_BUS)


@dataclass(frozen=True)
class Timing:
    """One collective at one size.

    Attributes:
        size_bytes: S of nccl-tests: the whole array (what a gather ends with, a reduce-scatter begins with).
        seconds: of one operation, the mean over repetitions, on the slowest rank.
    """

    collective: Collective
    size_bytes: int
    seconds: float
    ranks: int

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes a second: S/t."""
        return self.size_bytes / self.seconds

    @property
    def bus_bandwidth(self) -> float:
        """Bytes a second on the busiest link."""
        return self.algorithm_bandwidth * _ON_THE_BUS[self.collective](self.ranks)


@dataclass(frozen=True)
class Curve:
    """The timings of one collective, by rising size; at least one."""

    timings: tuple[Timing, ...]

    @property
    def latency_seconds(self) -> float:
        """What the smallest message took."""
        return self.timings[0].seconds

    @property
    def bus_bandwidth(self) -> float:
        """The best of all sizes, bytes a second."""
        return max(timing.bus_bandwidth for timing in self.timings)

    def seconds(self, size_bytes: float) -> float:
        """Of one operation of any size: between two measured ones on the line through both, below the smallest as long
        as that, above the largest at the largest's speed."""
        sizes = [timing.size_bytes for timing in self.timings]
        if size_bytes <= 0:
            return 0.0
        if size_bytes <= sizes[0]:
            return self.timings[0].seconds
        if size_bytes >= sizes[-1]:
            return self.timings[-1].seconds * size_bytes / sizes[-1]
        right = bisect_left(sizes, size_bytes)
        low, high = self.timings[right - 1], self.timings[right]
        share = (size_bytes - low.size_bytes) / (high.size_bytes - low.size_bytes)
        return low.seconds + share * (high.seconds - low.seconds)


def curves(timings: Sequence[Timing]) -> dict[Collective, Curve]:
    """Timings in any order, as a curve for each collective there is."""
    ordered = sorted(timings, key=lambda timing: timing.size_bytes)
    return {
        name: Curve(tuple(timing for timing in ordered if timing.collective == name))
        for name in COLLECTIVES
        if any(timing.collective == name for timing in ordered)
    }


def sizes(smallest: int = 1 << 10, largest: int = 1 << 26, factor: int = 4) -> list[int]:
    """Message sizes in bytes from `smallest` on, each `factor` times the one before, and `largest` last."""
    found = []
    size = smallest
    while size < largest:
        found.append(size)
        size *= factor
    return [*found, largest]
