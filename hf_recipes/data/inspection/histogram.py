"""Lengths → percentiles and a histogram with round edges. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 99)
_STEPS = (1, 2, 5)


@dataclass(frozen=True)
class Histogram:
    """`counts[i]` of the lengths lie in ``edges[i] <= length < edges[i + 1]``; all bins are equally wide."""

    edges: list[int]
    counts: list[int]
    percentiles: dict[str, int]


def histogram(lengths: np.ndarray, bins: int = 16) -> Histogram:
    """A histogram of integer `lengths` in about `bins` bins of a round width, from the shortest to the longest."""
    if not len(lengths):
        return Histogram([0, 1], [0], {})
    low, high = int(lengths.min()), int(lengths.max())
    width = _round_width((high - low + 1) / bins)
    first = low // width * width
    counts = np.bincount((lengths - first) // width)
    edges = [first + width * index for index in range(len(counts) + 1)]
    return Histogram(edges, counts.tolist(), percentiles(lengths))


def _round_width(raw: float) -> int:
    """The smallest of 1, 2, 5, 10, 20, 50, … that is not below `raw`."""
    power = 1
    while True:
        for step in _STEPS:
            if step * power >= raw:
                return step * power
        power *= 10


def percentiles(lengths: np.ndarray) -> dict[str, int]:
    """Nearest-rank percentiles: the smallest length that p % of the samples do not exceed; and the longest."""
    values = np.percentile(lengths, PERCENTILES, method="inverted_cdf")
    named = {f"p{percent}": int(value) for percent, value in zip(PERCENTILES, values, strict=True)}
    return {**named, "max": int(lengths.max())}
