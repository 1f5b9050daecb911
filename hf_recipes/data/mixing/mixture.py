"""Which general rows make up an exact share of the training set, by rows or by tokens. Pure; `mix` applies it.

With a share s of the whole and a domain of size D, general rows of size D · s / (1 - s) are chosen: 850 domain rows at
0.15 call for 850 · 0.15 / 0.85 = 150 general ones, 1,000 in all. All general rows lie in one order, decided by the
seed, and the rows chosen are its beginning: the one whose size comes nearest to what is called for. So the size is
missed by half a sample at most, and a larger share takes the same rows and more.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger

UNITS = ("rows", "tokens", "supervised_tokens")

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Mixture:
    """General rows chosen, and the share reached against the one asked for, in the unit of the sizes.

    Attributes:
        chosen: of each general source, row numbers (int64, ascending; a row that is used n times stands n times).
        share: general part of the whole that is reached.
        asked: general part of the whole that was asked for.
        is_short: every general row is in as often as allowed, and still more than half a sample is missing.
        most_uses: how often the most used row is used; every row is used so often or once less.
    """

    chosen: list[Integers]
    share: float
    asked: float
    is_short: bool
    most_uses: int = 1


def choose_mixture(
    domain_size: float,
    general_sizes: Sequence[npt.NDArray[np.integer]],
    share: float,
    seed: int,
    weights: Sequence[float] | None = None,
    max_repeats: int = 1,
) -> Mixture:
    """Choose general rows so that their sizes make up `share` of the whole; takes some 50 bytes a general row.

    Args:
        domain_size: size of the domain part, all of which is used once: its number of rows, or of tokens.
        general_sizes: of each general source, the sizes of its rows in the same unit (all 1 to count rows).
        share: general part of the whole training set, from 0 to below 1.
        seed: decides which rows are taken; a larger share takes the same ones and more.
        weights: how the general part is shared out among the general sources (equal by default). What a source is too
            small for, the others take over.
        max_repeats: how often a row may be used. No row is used twice before every row of every source has been used
            once, and so on, so that repetition is even.

    Returns:
        The choice. The general part misses its size by at most half a sample unless the sources are too small.
    """
    check_max_repeats(max_repeats)
    wanted = domain_size * share / (1 - share)
    orders = [shuffled(len(sizes), f"{seed}:{source}") for source, sizes in enumerate(general_sizes)]
    ordered = [sizes[order] for sizes, order in zip(general_sizes, orders, strict=True)]
    lap = float(sum(sizes.sum() for sizes in ordered))
    laps = min(int(wanted // lap), max_repeats) if lap else 0
    rest = wanted - laps * lap
    counts, reached = [0] * len(ordered), 0.0
    if lap and laps < max_repeats:
        counts, reached = _beginning(ordered, weights or [1.0] * len(ordered), rest)
    general = laps * lap + reached
    largest = max((int(sizes.max()) for sizes in ordered if len(sizes)), default=0)
    whole_laps = laps + (counts == [len(order) for order in orders])
    total = domain_size + general
    return Mixture(
        [_with_repeats(order, count, laps) for order, count in zip(orders, counts, strict=True)],
        general / total if total else 0.0,
        share,
        (not lap or whole_laps == max_repeats) and wanted - general > largest / 2,
        laps + any(counts),
    )


def shuffled(count: int, seed: int | str) -> Integers:
    """The numbers below `count` in an order decided by `seed`, the same with every version of numpy."""
    digest = hashlib.blake2b(str(seed).encode(), digest_size=16).digest()
    # The raw stream of a bit generator is fixed by numpy's promise; that of Generator.permutation is not.
    return np.argsort(np.random.PCG64(int.from_bytes(digest, "little")).random_raw(count), kind="stable")


def _beginning(
    ordered: Sequence[npt.NDArray[np.integer]], weights: Sequence[float], wanted: float
) -> tuple[list[int], float]:
    """How many rows from each source's beginning come nearest to the size `wanted` together, and their size.

    The sources are merged by the middle of each row on its source's scale, size so far / weight (Sainte-Laguë's
    method), which keeps every beginning near the weights and lets the others go on where a source ends.
    """
    middles = np.concatenate(
        [(np.cumsum(sizes) - sizes / 2) / weight for sizes, weight in zip(ordered, weights, strict=True)]
    )
    merged = np.argsort(middles, kind="stable")
    totals = np.concatenate([sizes.astype(np.int64) for sizes in ordered])[merged].cumsum()
    count = _nearest(totals, wanted)
    ends = np.cumsum([len(sizes) for sizes in ordered])
    sources = np.searchsorted(ends, merged[:count], side="right")
    return np.bincount(sources, minlength=len(ordered)).tolist(), float(totals[count - 1]) if count else 0.0


def _nearest(totals: npt.NDArray[np.int64], wanted: float) -> int:
    """How many rows, with the sums `totals` (ascending), come nearest to `wanted`: the fewest of equally near."""
    at = int(np.searchsorted(totals, wanted))
    if at == len(totals):
        return at
    below = totals[at - 1] if at else 0
    return at + int(totals[at] - wanted < wanted - below)


def _with_repeats(order: Integers, count: int, laps: int) -> Integers:
    """Every row `laps` times, and the first `count` of `order` once more; ascending."""
    if not laps:
        return np.sort(order[:count])
    uses = np.full(len(order), laps)
    uses[order[:count]] += 1
    return np.repeat(np.arange(len(order)), uses)


def check_share(general_share: float, unit: str, unit_name: str = "share_unit") -> None:
    """Raise `UserError` for a share outside [0, 1) or an unknown unit, whose key is called `unit_name`."""
    if not 0 <= general_share < 1:
        raise UserError(f"general_share is the general part of the whole, from 0 to below 1, not {general_share}.")
    if unit not in UNITS:
        raise UserError(f"{unit_name} must be one of {', '.join(UNITS)}, not '{unit}'.")


def check_max_repeats(max_repeats: int) -> None:
    """Raise `UserError` unless `max_repeats` is a whole number from 1."""
    if isinstance(max_repeats, bool) or not isinstance(max_repeats, int) or max_repeats < 1:
        raise UserError(
            f"max_repeats is how often a general row may be used, a whole number from 1, not {max_repeats}."
        )


def tell_no_general(share: float) -> None:
    """Say that a share asked for has nothing to be made of."""
    if share > 0:
        logger.info(
            "No source has role: general, so general_share %g is ignored: general data mixed in keeps the model from "
            "forgetting.",
            share,
        )


def tell_short(mixture: Mixture, unit: str) -> None:
    """Tell rows used more than once; warn, with what is reached and how to change it, when there is too little."""
    times = f"{mixture.most_uses} times" if mixture.most_uses > 1 else "once"
    if mixture.is_short:
        logger.warning(
            "general_share %.4g is not reached: with every general row used %s the share is %.4g by %s; give more "
            "general data, or set general_share: %.3f%s.",
            mixture.asked,
            times,
            mixture.share,
            unit,
            mixture.share,
            f", or max_repeats: {_repeats_needed(mixture)}" if mixture.share else "",
        )
    elif mixture.most_uses > 1:
        logger.info("The general rows are too few for general_share %.4g: some are used %s.", mixture.asked, times)


def _repeats_needed(mixture: Mixture) -> int:
    """Uses of every general row that the share asked for takes, from what `most_uses` of all rows have reached."""
    odds_asked, odds = (share / (1 - share) for share in (mixture.asked, mixture.share))
    return math.ceil(mixture.most_uses * odds_asked / odds - 1e-9)
