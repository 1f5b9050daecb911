"""How far raters agree, and how sure a share of preferences is: pure functions on labels and counts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeAlias, TypeVar

Label = TypeVar("Label", bound=Hashable)
Distance: TypeAlias = Callable[[Label, Label, Mapping[Label, int]], float]

_Z_95 = 1.959963984540054  # the normal distribution's 97.5 % point


def wilson(successes: float, count: int) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927, "Probable inference"), which stays in [0, 1] at small counts.

    Args:
        successes: may be a half, where a tie counts half to each side.
        count: of trials, at least one.
    """
    share = successes / count
    scale = 1 + _Z_95**2 / count
    middle = (share + _Z_95**2 / (2 * count)) / scale
    half = _Z_95 / scale * math.sqrt(share * (1 - share) / count + _Z_95**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)


def cohen_kappa(left: Sequence[Hashable], right: Sequence[Hashable]) -> float:
    """Agreement of two raters on the same items beyond chance: (p_o − p_e) / (1 − p_e).

    Source: Cohen 1960, "A coefficient of agreement for nominal scales". NaN where both gave one and the same label
    throughout, since then all agreement is expected of chance.

    Args:
        left: labels of one rater, at least one.
        right: the other's, in the same order.
    """
    count = len(left)
    observed = sum(one == other for one, other in zip(left, right, strict=True)) / count
    mine, theirs = Counter(left), Counter(right)
    expected = sum(mine[label] * theirs[label] for label in mine) / count**2
    return math.nan if expected == 1 else (observed - expected) / (1 - expected)


def percent_agreement(units: Sequence[Sequence[Hashable]]) -> float:
    """The share of pairs of raters that gave an item the same label, over all pairs that rated one in common.

    Args:
        units: the labels of each item, one for each rater who rated it. NaN where no item has two.
    """
    same = sum(count * (count - 1) for unit in units for count in Counter(unit).values())
    pairs = sum(len(unit) * (len(unit) - 1) for unit in units)
    return same / pairs if pairs else math.nan


def nominal(left: Label, right: Label, totals: Mapping[Label, int]) -> float:
    """Labels are the same or not."""
    return float(left != right)


def ordinal(left: int, right: int, totals: Mapping[int, int]) -> float:
    """Labels are ranks: the farther apart, the more labels were given in between (Krippendorff 2011, section 3)."""
    low, high = min(left, right), max(left, right)
    between = sum(count for value, count in totals.items() if low <= value <= high)
    return (between - (totals[low] + totals[high]) / 2) ** 2 if low != high else 0.0


def krippendorff_alpha(units: Sequence[Sequence[Label]], distance: Distance[Label]) -> float:
    """Agreement of any number of raters, some of whom may have left items out: 1 − D_o / D_e.

    Source: Krippendorff 2011, "Computing Krippendorff's alpha-reliability": D_o is the mean distance of labels within
    items, D_e of labels whatever their item. NaN where no item has two labels, or all labels are the same.

    Args:
        units: the labels of each item.
        distance: `nominal` or `ordinal`.
    """
    paired = [unit for unit in units if len(unit) > 1]
    totals = Counter(label for unit in paired for label in unit)
    count = sum(totals.values())
    between = {(one, other): distance(one, other, totals) for one in totals for other in totals}
    observed = sum(_spread(Counter(unit), between) / (len(unit) - 1) for unit in paired)
    expected = _spread(totals, between) / (count - 1) if count > 1 else 0.0
    return 1 - observed / expected if expected else math.nan


def _spread(labels: Mapping[Label, int], between: Mapping[tuple[Label, Label], float]) -> float:
    """The sum of distances over ordered pairs of labels."""
    return sum(labels[one] * labels[other] * between[one, other] for one in labels for other in labels)
