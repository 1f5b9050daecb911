"""Axes of the pictures: how far they reach and where their ticks are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

_LOG_RATIO = 20.0  # beyond this the short bars of a linear axis are too short to see
_CUT = 2.0  # the limit, and what comes nearest to it, take at least about half of the axis


@dataclass(frozen=True)
class Axis:
    """From `start` to `end`; a logarithmic one starts above 0."""

    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value is, from 0 (start) to 1 (end); what lies beyond is put on the edge."""
        if not self.log:
            return min(max((value - self.start) / (self.end - self.start), 0.0), 1.0)
        if value <= self.start:
            return 0.0
        return min(math.log(value / self.start) / math.log(self.end / self.start), 1.0)


def memory_axis(limit: float, totals: Sequence[float]) -> Axis:
    """An axis of memory from 0 that shows the limit and the totals, in the unit of both.

    Totals far beyond the limit are cut off, else the bars that fit would be too short to see.
    """
    longest = max(limit, *totals, 0.0) if totals else limit
    end = min(longest, _CUT * max(limit, min(totals, default=limit))) * 1.04
    end = end if end > 0 else 1.0
    return Axis(0.0, end, _linear_ticks(end))


def band_axis(bands: Sequence[tuple[float, float, float]]) -> Axis:
    """An axis for (low, expected, high): from 0, or logarithmic where they differ by more than twenty times."""
    lowest = min((band[0] for band in bands), default=0.0)
    highest = max((band[2] for band in bands), default=0.0)
    if highest <= 0:
        return Axis(0.0, 1.0, (0.0, 1.0))
    if lowest <= 0 or highest / lowest <= _LOG_RATIO:
        return Axis(0.0, highest * 1.04, _linear_ticks(highest * 1.04))
    start, end = lowest / 1.3, highest * 1.15
    return Axis(start, end, _log_ticks(start, end), log=True)


def _linear_ticks(end: float) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten, six at most."""
    power = 10.0 ** math.floor(math.log10(end / 5))
    step = next(factor * power for factor in (1, 2, 5, 10) if end / (factor * power) < 6)
    return tuple(step * number for number in range(int(end / step) + 1))


def _log_ticks(start: float, end: float) -> tuple[float, ...]:
    """Powers of ten, and 2 and 5 times them where there is room."""
    exponents = range(math.floor(math.log10(start)), math.ceil(math.log10(end)) + 1)
    factors = (1, 2, 5) if end / start < 200 else (1,)
    ticks = [factor * 10.0**exponent for exponent in exponents for factor in factors]
    return tuple(tick for tick in ticks if start <= tick <= end)
