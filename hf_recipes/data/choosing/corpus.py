"""Rules that need to have seen all rows: over-long ones, duplicates, unbalanced classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_recipes.data.choosing.near_duplicates import near_repeats
from hf_recipes.data.choosing.samples import Samples
from hf_recipes.data.clean.corpus import balanced, length_outliers, repeats
from hf_recipes.data.settings import DataSettings

Array = np.ndarray[Any, Any]
_DROPPED_KINDS: dict[str, tuple[str, ...]] = {"off": (), "exact": ("exact",), "near": ("exact", "near")}


@dataclass
class Sieve:
    """The samples still in, and for each source why others are out.

    Attributes:
        alive: bool array, one entry a sample.
        dropped: of each source, reason → numbers of the samples taken out; always all parts of a row.
    """

    samples: Samples
    alive: Array
    dropped: list[dict[str, Array]]

    @classmethod
    def all_of(cls, samples: Samples) -> Sieve:
        """Everything is in."""
        return cls(samples, np.ones(len(samples), bool), [{} for _ in samples.sources])

    def drop(self, which: Array, reason: str) -> None:
        """Take out the samples flagged in `which` that are still in."""
        numbers = np.flatnonzero(which & self.alive)
        self.alive[numbers] = False
        of_source = self.samples.source_of(numbers)
        for source in np.unique(of_source):
            self.dropped[source][reason] = numbers[of_source == source]

    def inside(self, source: int) -> Array:
        """The numbers of a source's samples that are still in."""
        numbers = self.samples.numbers(source)
        return numbers[self.alive[numbers]]


def drop_length_outliers(sieve: Sieve, settings: DataSettings) -> None:
    """Take out rows longer than a multiple of their source's mean length in tokens."""
    factor = settings.clean.longer_than_mean
    if factor is None:
        return
    lengths, which = sieve.samples.column("row_tokens"), np.zeros(len(sieve.samples), bool)
    for number, source in enumerate(sieve.samples.sources):
        rows, tokens = source.account.lengths
        if rows and not source.spec.is_given_eval:
            inside = sieve.samples.numbers(number)
            which[inside] = length_outliers(lengths[inside], factor, mean=tokens / rows)
    sieve.drop(which, f"longer than {factor:g} × the mean length")


def drop_duplicates(
    sieve: Sieve, settings: DataSettings, exact: Array, near: Array, bands: Array
) -> list[dict[str, int]]:
    """Count rows that repeat an earlier one, and take them out where asked; of equal rows the domain's stay.

    Args:
        sieve: what is in.
        settings: whether duplicates are dropped.
        exact: a code for every sample, equal for equal rows.
        near: the near-duplicate cluster of every sample.
        bands: the MinHash bands of all samples.

    Returns:
        For each source, how many rows repeat another exactly and how many only nearly, dropped or not.
    """
    samples = sieve.samples
    first_part = samples.column("part") == 0
    order = _first_parts_in_order(sieve, first_part)
    again = {"exact": _repeats(exact, order)}
    again["near"] = _near_repeats(near, bands, order[~again["exact"][order]], settings.clean.near_threshold)
    starts = samples.starts
    counts = [
        {kind: int(which[starts[number] : starts[number + 1]].sum()) for kind, which in again.items()}
        for number in range(len(samples.sources))
    ]
    for kind in _DROPPED_KINDS[settings.clean.duplicates]:
        of_row = again[kind][first_part]
        sieve.drop(of_row[np.cumsum(first_part) - 1], f"{kind} duplicate of another row")
    return counts


def _first_parts_in_order(sieve: Sieve, first_part: Array) -> Array:
    """The first samples of all rows that are in, domain before general; given eval sets stay as they are."""
    samples = sieve.samples
    sources = [number for number, source in enumerate(samples.sources) if not source.spec.is_given_eval]
    sources.sort(key=lambda number: samples.sources[number].spec.role != "domain")
    parts = [inside[first_part[inside]] for inside in map(sieve.inside, sources)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _repeats(codes: Array, order: Array) -> Array:
    """Which samples have the code of one that comes earlier in `order`."""
    which = np.zeros(len(codes), bool)
    which[order] = repeats(codes[order])
    return which


def _near_repeats(clusters: Array, bands: Array, order: Array, threshold: float) -> Array:
    """Which samples nearly equal one that comes earlier in `order` and stays."""
    which = np.zeros(len(clusters), bool)
    _, of_sample, sizes = np.unique(clusters[order], return_inverse=True, return_counts=True)
    crowded = order[sizes[of_sample] > 1]  # few, so only few bands are read into memory
    _, first, inverse = np.unique(clusters[crowded], return_index=True, return_inverse=True)
    which[crowded] = near_repeats(bands[crowded], first[inverse], threshold)
    return which


def drop_for_balance(sieve: Sieve, settings: DataSettings) -> None:
    """Cut the classes of sources that name a field for it (``balance_by``) down to even numbers."""
    which, codes = np.zeros(len(sieve.samples), bool), sieve.samples.column("balance")
    for number, source in enumerate(sieve.samples.sources):
        if source.spec.balance_by and not source.spec.is_given_eval:
            inside = sieve.inside(number)
            which[inside] = ~balanced(codes[inside], settings.seed)
    sieve.drop(which, "cut to balance its class")
