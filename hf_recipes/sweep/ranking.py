"""Which trial is best, and how much that is worth: edges of what was tried, and the spread of seeds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from hf_recipes.sweep.axes import short, show
from hf_recipes.sweep.points import Point, identity

_SEED = "seed"


@dataclass(frozen=True)
class Result:
    """A trial that ended well: its point, and its value of what is sought."""

    name: str
    point: Point
    value: float


@dataclass(frozen=True)
class Group:
    """Trials that differ in their seed alone: their point without it, their values."""

    point: Point
    results: tuple[Result, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(result.value for result in self.results)

    @property
    def spread(self) -> float:
        """From the lowest value to the highest."""
        values = [result.value for result in self.results]
        return max(values) - min(values)

    def __str__(self) -> str:
        """``1.234``, or ``1.234 ± 0.01`` (half the spread)."""
        return f"{self.mean:.4g}" + (f" ± {self.spread / 2:.2g}" if len(self.results) > 1 else "")


def group_by_seed(results: Sequence[Result], *, less: bool) -> list[Group]:
    """Groups from the best mean on."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(identity(_without_seed(result.point)), []).append(result)
    groups = [Group(_without_seed(each[0].point), tuple(each)) for each in found.values()]
    return sorted(groups, key=lambda group: group.mean if less else -group.mean)


def _without_seed(point: Point) -> Point:
    return {key: value for key, value in point.items() if key != _SEED}


def best_result(groups: Sequence[Group], *, less: bool) -> Result:
    """The best trial of the best group."""
    return (min if less else max)(groups[0].results, key=lambda result: result.value)


def edge_sentences(groups: Sequence[Group]) -> list[str]:
    """Where the best value of a key that is a number is the lowest or highest that was tried, something better may lie
    beyond."""
    told = []
    for key, best in groups[0].point.items():
        tried = [group.point.get(key) for group in groups]
        numbers = [value for value in tried if isinstance(value, (int, float)) and not isinstance(value, bool)]
        if len(set(numbers)) < 2 or len(numbers) < len(tried):
            continue
        if best in (min(numbers), max(numbers)):
            side, further = ("lowest", "lower") if best == min(numbers) else ("highest", "higher")
            told.append(
                f"The best {short(key)}, {show(best)}, is the {side} that was tried: {further} ones may be better."
            )
    return told


def spread_sentence(groups: Sequence[Group], metric: str) -> str | None:
    """Whether the best is further from the next than seeds alone make."""
    if len(groups) < 2:
        return None
    first, second = groups[0], groups[1]
    if all(len(group.results) < 2 for group in groups):
        return (
            "One seed each: how far two seeds are apart is not known, so small differences are no result; --seed 1,2,3 "
            "tells."
        )
    gap, spread = abs(first.mean - second.mean), max(group.spread for group in groups[:2])
    told = f"Between the best two points {metric} differs by {gap:.2g}"
    if gap > spread:
        return f"{told}, more than between their seeds ({spread:.2g})."
    return f"{told}, which is below the spread of their seeds ({spread:.2g}): take either."
