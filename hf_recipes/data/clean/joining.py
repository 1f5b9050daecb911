"""Joining numbered things into clusters, pair by pair, in 8 bytes a thing. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Similar = Callable[[Array, Array], Array]  # numbers left, numbers right → bool, pair by pair
_PAIRS_AT_ONCE = 1 << 16
_SMALL = 8  # members of a group up to which all pairs are listed
_LARGEST = 512
_ROWS_AT_ONCE = 16


def join_pairs(labels: Array, left: Array, right: Array) -> None:
    """Put `left[i]` and `right[i]`, and all that are with either, into one cluster, in place.

    Args:
        labels: each thing's label is a thing of its cluster that comes earlier, or itself; `settle` makes it the first.
        left: numbers of things.
        right: as many.
    """
    while True:
        one, other = firsts(labels, left), firsts(labels, right)
        apart = one != other
        if not apart.any():
            return
        left, right, one, other = left[apart], right[apart], one[apart], other[apart]
        np.minimum.at(labels, np.maximum(one, other), np.minimum(one, other))


def firsts(labels: Array, things: Array) -> Array:
    """The first thing of the cluster of each of `things`."""
    found = labels[things]
    while not np.array_equal(found, earlier := labels[found]):
        found = earlier
    return found


def settle(labels: Array) -> None:
    """Make every label the first thing of its cluster, in place."""
    labels[:] = firsts(labels, np.arange(len(labels)))


def join_similar(labels: Array, keys: Array, similar: Similar, ranks: Callable[[Array], Array]) -> None:
    """Join things that have a key in common and are similar, in place.

    Args:
        labels: as for `join_pairs`.
        keys: one a thing.
        similar: compares pairs of things.
        ranks: sorts things of a group so large that only `_LARGEST` neighbours are compared with each other.
    """
    order = np.argsort(keys, kind="stable")
    starts, sizes = group_bounds(keys[order])
    for left, right in _small_pairs(order, starts, sizes):
        apart = firsts(labels, left) != firsts(labels, right)
        left, right = left[apart], right[apart]
        near = similar(left, right)
        join_pairs(labels, left[near], right[near])
    for start, size in zip(starts[sizes > _SMALL], sizes[sizes > _SMALL], strict=True):
        members = order[start : start + size]
        if size > _LARGEST:
            members = members[ranks(members)]
        for some in range(0, size, _LARGEST):
            _join_group(labels, members[some : some + _LARGEST], similar)
    settle(labels)


def group_bounds(sorted_keys: Array) -> tuple[Array, Array]:
    """Start and size of every run of two or more equal keys."""
    bounds = np.flatnonzero(np.diff(sorted_keys)) + 1
    starts = np.concatenate([[0], bounds])
    sizes = np.diff(np.concatenate([starts, [len(sorted_keys)]]))
    return starts[sizes > 1], sizes[sizes > 1]


def _small_pairs(order: Array, starts: Array, sizes: Array) -> Iterator[tuple[Array, Array]]:
    """All pairs within groups of up to `_SMALL` members, some `_PAIRS_AT_ONCE` at a time."""
    for size in range(2, _SMALL + 1):
        of_size = starts[sizes == size]
        first, second = np.triu_indices(size, 1)
        step = max(1, _PAIRS_AT_ONCE // len(first))
        for some in range(0, len(of_size), step):
            members = order[of_size[some : some + step, None] + np.arange(size)]
            yield members[:, first].ravel(), members[:, second].ravel()


def _join_group(labels: Array, members: Array, similar: Similar) -> None:
    """Compare all pairs of a group that are not yet joined, some members with all others at a time."""
    for start in range(0, len(members), _ROWS_AT_ONCE):
        some, others = members[start : start + _ROWS_AT_ONCE], members[start + 1 :]
        row, column = np.nonzero(firsts(labels, some)[:, None] != firsts(labels, others))
        later = column >= row
        left, right = some[row[later]], others[column[later]]
        near = similar(left, right)
        join_pairs(labels, left[near], right[near])
