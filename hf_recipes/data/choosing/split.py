"""Train and eval parts of each source, taken before anything is mixed. Pure, on arrays of one entry a sample.

Samples that must not be torn apart (equal rows, parts of one row, one ``group_by`` value, near duplicates) form a
cluster, and a cluster lies on one side, across sources too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
UNDECIDED, TRAIN, EVAL = -1, 0, 1


def join_clusters(*attributes: Array) -> Array:
    """Number the clusters of samples that share a value of any attribute, directly or over others.

    Args:
        attributes: arrays of one value a sample, all of the same length.

    Returns:
        int64 array: the number of the first sample of each sample's cluster.
    """
    labels = np.arange(len(attributes[0]))
    codes = [np.unique(attribute, return_inverse=True)[1] for attribute in attributes]
    while True:
        before = labels
        for code in codes:
            smallest = np.full(int(code.max(initial=-1)) + 1, len(labels))
            np.minimum.at(smallest, code, labels)
            labels = smallest[code]
        labels = labels[labels]  # a cluster's first sample may itself belong to an earlier one by now
        if np.array_equal(labels, before):
            return labels


@dataclass
class Splitter:
    """Splits one source after another, remembering on which side each cluster lies.

    Args:
        samples: number of samples of all sources together; cluster numbers lie below it.
        seed: another seed, another split; the same seed gives the same split of the same samples.
    """

    samples: int
    seed: int

    def __post_init__(self) -> None:
        self.sides = np.full(self.samples, UNDECIDED, np.int8)

    def hold_out_all(self, clusters: Array) -> None:
        """Take clusters as eval, for a given eval set."""
        self.sides[clusters] = EVAL

    def split(self, clusters: Array, keys: Array, share: float, strata: Array | None = None) -> Array:
        """Choose the eval part of one source.

        The part is the share to the nearest sample (at least one) unless a cluster does not fit in, or another source
        has already decided for some. Clusters are taken in an order that depends on their text and the seed alone, so
        that samples added to the source leave most others on their side.

        Args:
            clusters: cluster number of every sample.
            keys: uint64 hash of every sample's text.
            share: part held out, 0 for none: then the clusters of the source are trained on in other sources, too, of
                those that are split after it.
            strata: a value a sample; the share then holds within each value, too.

        Returns:
            bool array: whether the sample is held out.
        """
        if share <= 0 or len(clusters) == 0:
            ids = np.unique(clusters)
            self.sides[ids[self.sides[ids] == UNDECIDED]] = TRAIN
            return np.zeros(len(clusters), bool)
        ids, first, of_sample, sizes = np.unique(clusters, return_index=True, return_inverse=True, return_counts=True)
        side = self.sides[ids] == EVAL
        order = np.argsort(mixed(keys[first], self.seed), kind="stable")
        order = order[self.sides[ids[order]] == UNDECIDED]
        groups = np.zeros(len(ids), np.int64) if strata is None else np.unique(strata[first], return_inverse=True)[1]
        wanted = max(1, round(share * len(clusters))) if len(ids) > 1 else 0
        wanted = min(wanted, len(clusters) - 1)
        for group, quota in enumerate(_quotas(groups, sizes, share, wanted)):
            inside = groups == group
            candidates = order[inside[order]]
            room = quota - int(sizes[inside & side].sum())
            side[candidates[fill(sizes[candidates], room)]] = True
        self.sides[ids] = np.where(side, EVAL, TRAIN)
        return side[of_sample]


def _quotas(groups: Array, sizes: Array, share: float, wanted: int) -> list[int]:
    """`wanted` shared out over the groups by their sizes, by largest remainders."""
    totals = np.bincount(groups, weights=sizes)
    ideal = totals * share if len(totals) > 1 else np.array([float(wanted)])
    quotas = np.floor(ideal).astype(np.int64)
    missing = wanted - int(quotas.sum())
    if missing > 0:
        quotas[np.argsort(quotas - ideal, kind="stable")[:missing]] += 1
    return quotas.tolist()


def fill(sizes: Array, room: int) -> Array:
    """Which of the clusters, taken in order and passed over where they are too large, fit into `room` samples."""
    taken = np.zeros(len(sizes), bool)
    rest = np.arange(len(sizes))
    while room > 0:
        rest = rest[sizes[rest] <= room]
        if not len(rest):
            break
        total = np.cumsum(sizes[rest])
        count = int(np.searchsorted(total, room, side="right"))
        taken[rest[:count]] = True
        room -= int(total[count - 1])
        rest = rest[count:]
    return taken


def mixed(keys: Array, seed: int) -> Array:
    """uint64 keys stirred with a seed (SplitMix64, Steele et al. 2014, §4): an order that looks random."""
    with np.errstate(over="ignore"):
        value = keys + np.uint64((seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % 2**64)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
