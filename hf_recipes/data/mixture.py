"""General data mixed in by an exact share of the training set, by rows or by tokens.

With a share s of the whole and D domain rows (or tokens), general data of D · s / (1 - s) is chosen: at random by the
seed, without repetition, to the nearest row or sample.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger

if TYPE_CHECKING:
    from datasets import Dataset

UNITS = ("rows", "tokens", "supervised_tokens")


@dataclass(frozen=True)
class Mixture:
    """Rows chosen of each general source (ascending), and the share reached against the one asked for, in the unit.

    `is_short`: every general row is in, and still more than half a sample is missing.
    """

    chosen: list[list[int]]
    share: float
    asked: float
    is_short: bool


def choose_mixture(
    domain_sizes: Sequence[float],
    general_sizes: Sequence[Sequence[float]],
    share: float,
    seed: int,
    weights: Sequence[float] | None = None,
) -> Mixture:
    """Choose general samples so that their sizes make up `share` of the whole.

    Args:
        domain_sizes: size of every domain sample: 1 each to count rows, else its number of tokens.
        general_sizes: sizes of the samples of each general source.
        share: general part of the whole training set, from 0 to below 1.
        seed: decides which samples are taken; a larger share takes the same ones and more.
        weights: how the general part is shared out among the general sources (equal by default). What a source is too
            small for, the others take over.

    Returns:
        The choice. The general part misses its size by at most half a sample unless the sources are too small.
    """
    target = sum(domain_sizes) * share / (1 - share)
    shares = list(weights or [1.0] * len(general_sizes))
    orders = [shuffled(len(sizes), f"{seed}:{source}") for source, sizes in enumerate(general_sizes)]
    taken = [0] * len(general_sizes)
    rest, rest_weight = target, sum(shares)
    # The scarcest source first, so that what it lacks is taken from those that have more.
    by_scarcity = sorted(range(len(shares)), key=lambda source: sum(general_sizes[source]) / shares[source])
    # A second pass, without weights, makes up for what rounding left over.
    for source, weighted in [*((source, True) for source in by_scarcity), *((source, False) for source in by_scarcity)]:
        wanted = rest * shares[source] / rest_weight if weighted else rest
        left = [general_sizes[source][index] for index in orders[source][taken[source] :]]
        more = _nearest_prefix(left, wanted)
        taken[source] += more
        rest -= sum(left[:more])
        rest_weight -= shares[source] if weighted else 0.0
    chosen = [sorted(order[:count]) for order, count in zip(orders, taken, strict=True)]
    total = sum(domain_sizes) + target - rest
    largest = max((size for sizes in general_sizes for size in sizes), default=0)
    everything = taken == [len(sizes) for sizes in general_sizes]
    return Mixture(chosen, (target - rest) / total if total else 0.0, share, everything and rest > largest / 2)


def shuffled(count: int, seed: int | str) -> list[int]:
    """The numbers below `count` in an order decided by `seed`."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def _nearest_prefix(sizes: Sequence[float], wanted: float) -> int:
    """How many of `sizes`, from the front, sum up nearest to `wanted` (the fewest of equally near)."""
    total, best, distance = 0.0, 0, wanted
    for count, size in enumerate(sizes, 1):
        total += size
        if abs(total - wanted) < distance:
            best, distance = count, abs(total - wanted)
        if total > wanted:
            break
    return best


def check_share(general_share: float, unit: str) -> None:
    """Raise `UserError` for a share outside [0, 1) or an unknown unit."""
    if not 0 <= general_share < 1:
        raise UserError(f"general_share is the general part of the whole, from 0 to below 1, not {general_share}.")
    if unit not in UNITS:
        raise UserError(f"share_unit must be one of {', '.join(UNITS)}, not '{unit}'.")


def tell_short(mixture: Mixture, unit: str) -> None:
    """Warn, with what is reached instead and how to change it, when the general sources are too small."""
    if mixture.is_short:
        logger.warning(
            "general_share %.4g is not reached: with every general row the share is %.4g by %s; give more general "
            "data, or set general_share: %.3f.",
            mixture.asked,
            mixture.share,
            unit,
            mixture.share,
        )


def sample_sizes(dataset: Dataset, unit: str) -> list[int]:
    """Size of every row in `unit`; tokens come from the columns ``input_ids`` and ``labels``."""
    if unit == "rows":
        return [1] * len(dataset)
    column = "input_ids" if unit == "tokens" else "labels"
    if column not in dataset.column_names:
        raise UserError(f"Shares by {unit} need a tokenised dataset with a column {column}.")
    rows: Any = dataset[column]
    return [len(row) if unit == "tokens" else sum(label >= 0 for label in row) for row in rows]


def mix_datasets(
    domain: Dataset, general: Dataset, general_share: float, unit: str = "rows", seed: int = 42
) -> Dataset:
    """Mix general rows into `domain` and shuffle.

    Args:
        domain: every row of it is kept.
        general: rows are drawn from it without repetition; must have the columns of `domain`.
        general_share: its part of the result, from 0 to below 1.
        unit: ``rows``, ``tokens`` (column ``input_ids``) or ``supervised_tokens`` (column ``labels``).
        seed: decides the rows and their order.

    Returns:
        The mixture; its column ``source`` says where a row is from (``domain`` or ``general`` where there was none).

    Raises:
        UserError: share or unit out of range, or columns that differ.
    """
    from datasets import concatenate_datasets

    check_share(general_share, unit)
    parts = [_with_source(domain, "domain"), _with_source(general, "general")]
    if set(parts[0].column_names) != set(parts[1].column_names):
        raise UserError(
            f"domain has the columns {sorted(domain.column_names)} and general {sorted(general.column_names)}: "
            "bring both to the same columns."
        )
    mixture = choose_mixture(sample_sizes(domain, unit), [sample_sizes(general, unit)], general_share, seed)
    tell_short(mixture, unit)
    together = concatenate_datasets([parts[0], parts[1].select(mixture.chosen[0])])
    return together.select(shuffled(len(together), seed))


def _with_source(dataset: Dataset, name: str) -> Dataset:
    return dataset if "source" in dataset.column_names else dataset.add_column("source", [name] * len(dataset))
