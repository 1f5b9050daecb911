"""Arithmetic on stretches of time: unions, overlaps, and which of several nested ranges is the innermost."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

Interval = tuple[float, float]


class Named(NamedTuple):
    """A stretch of time with a name; any unit, the same for all."""

    start: float
    end: float
    name: str


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The union as disjoint intervals in ascending order; empty ones vanish."""
    union: list[Interval] = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union


def total(disjoint: Iterable[Interval]) -> float:
    """Summed length of intervals that do not overlap."""
    return sum(end - start for start, end in disjoint)


def common(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """What two lists of disjoint ascending intervals have in common."""
    shared: list[Interval] = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if end > start:
            shared.append((start, end))
        if left[i][1] <= right[j][1]:
            i += 1
        else:
            j += 1
    return shared


def without(left: Sequence[Interval], right: Sequence[Interval]) -> list[Interval]:
    """The parts of `left` that `right` does not cover; both disjoint and ascending."""
    rest: list[Interval] = []
    j = 0
    for start, end in left:
        while j < len(right) and right[j][1] <= start:
            j += 1
        at, k = start, j
        while k < len(right) and right[k][0] < end:
            if right[k][0] > at:
                rest.append((at, right[k][0]))
            at = max(at, right[k][1])
            k += 1
        if at < end:
            rest.append((at, end))
    return rest


def innermost(ranges: Iterable[Named]) -> list[Named]:
    """Cut nested ranges of one thread into disjoint ascending segments, each with the name of its innermost range.

    Together the segments cover exactly what the ranges cover. A range that outlasts the one it began in (clocks are
    rounded) is cut at its end.
    """
    segments: list[Named] = []
    open_ranges: list[Named] = []
    at = 0.0

    def advance(moment: float, name: str) -> None:
        nonlocal at
        if moment > at:
            segments.append(Named(at, moment, name))
            at = moment

    for start, end, name in sorted(ranges, key=lambda r: (r.start, -r.end)):
        while open_ranges and open_ranges[-1].end <= start:
            advance(open_ranges[-1].end, open_ranges.pop().name)
        if open_ranges:
            advance(start, open_ranges[-1].name)
            end = min(end, open_ranges[-1].end)
        else:
            at = start
        open_ranges.append(Named(start, end, name))
    while open_ranges:
        advance(open_ranges[-1].end, open_ranges.pop().name)
    return segments


class Timeline:
    """Disjoint ascending segments that can be asked what was going on at a moment."""

    def __init__(self, segments: Sequence[Named]) -> None:
        self.segments = segments
        self._starts = [segment.start for segment in segments]

    def at(self, moment: float) -> str | None:
        """The name of the segment that holds `moment`, or None outside all of them."""
        place = bisect_right(self._starts, moment) - 1
        return self.segments[place].name if place >= 0 and moment < self.segments[place].end else None
