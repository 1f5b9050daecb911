"""Rules that look at all rows of a source: on arrays of one number a row. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

Array = np.ndarray[Any, Any]
Value = TypeVar("Value")


def length_outliers(lengths: Array, factor: float = 4.0, mean: float | None = None) -> Array:
    """Rows that are longer than `factor` times the mean.

    Args:
        lengths: the length of each row, in tokens.
        factor: how many times the mean is still allowed.
        mean: the mean length, if it is that of more rows than these; else that of `lengths`.

    Returns:
        bool array, True for a row to drop.
    """
    if not len(lengths):
        return np.zeros(0, bool)
    return np.asarray(lengths) > factor * (float(np.mean(lengths)) if mean is None else mean)


def repeats(keys: Array) -> Array:
    """Rows whose key an earlier row has; True for a row to drop."""
    keys = np.asarray(keys)
    which = np.ones(len(keys), bool)
    which[np.unique(keys, return_index=True)[1]] = False
    return which


def balanced(codes: Array, seed: int, largest_ratio: float = 1.0) -> Array:
    """Cut classes down until none is larger than `largest_ratio` times the smallest.

    Args:
        codes: the class of each row; rows of a negative code (no value) belong to none and stay.
        seed: another seed keeps other rows of a class.
        largest_ratio: 1 makes all classes equal.

    Returns:
        bool array, True for a row to keep.
    """
    codes = np.asarray(codes)
    keep = codes < 0 if np.issubdtype(codes.dtype, np.signedinteger) else np.zeros(len(codes), bool)
    classes, numbers, counts = np.unique(codes[~keep], return_inverse=True, return_counts=True)
    if not len(classes):
        return keep
    allowed = max(1, int(largest_ratio * counts.min()))
    rows = np.flatnonzero(~keep)
    shuffled = np.random.default_rng(seed).permutation(len(rows))
    by_class = shuffled[np.argsort(numbers[shuffled], kind="stable")]
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    rank_in_class = np.arange(len(rows)) - np.repeat(starts, counts)
    keep[rows[by_class[rank_in_class < allowed]]] = True
    return keep


def heavy_value(counts: Mapping[Value, int], max_share: float = 0.99) -> tuple[Value, float] | None:
    """The value that holds more than `max_share` of all counts, with its share; None when there is none.

    Fewer than two rows say nothing.
    """
    total = sum(counts.values())
    if total < 2:
        return None
    value = max(counts, key=lambda each: counts[each])
    share = counts[value] / total
    return (value, share) if share > max_share else None
