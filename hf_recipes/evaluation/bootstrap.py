"""How sure a difference between two models is: the paired bootstrap over the rows that both answered.

Efron and Tibshirani 1993, "An Introduction to the Bootstrap", chapter 13 (the percentile interval); paired, as in
Koehn 2004, "Statistical Significance Tests for Machine Translation Evaluation": rows are drawn with replacement, and
both models are scored on the same drawn rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 10_000
SEED = 0
# By the sign test, five rows that all differ in one direction do so by chance with probability 2/2**5 > 5 %. A
# percentile interval does not know that: of two rows, both won, it makes the interval [1, 1].
LEAST_DIFFERING = 6
_DRAWN_AT_ONCE = 4_000_000  # counts of rows in memory, 8 bytes each

Sums = NDArray[np.float64]
Statistic = Callable[[Sums], Sums]


@dataclass(frozen=True)
class Difference:
    """A difference of two models' figures with its 95 % interval, NaN where a single row gives none; `sure` where the
    interval leaves out 0 and at least `LEAST_DIFFERING` rows differ."""

    value: float
    low: float
    high: float
    sure: bool


def ratio(sums: Sums) -> Sums:
    """Sum of the first column over that of the second: a share, a mean, a loss per token. NaN where nothing counts."""
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient: Sums = np.where(sums[..., 1] > 0, sums[..., 0] / sums[..., 1], np.nan)
    return quotient


def figure(contributions: Sums, statistic: Statistic = ratio) -> float:
    """One model's figure, from a line of contributions for each row."""
    return float(statistic(contributions.sum(0)))


def paired_difference(
    reference: Sums,
    other: Sums,
    statistic: Statistic = ratio,
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Difference:
    """`other`'s figure less `reference`'s, with the 2.5 % and 97.5 % quantiles over resamples of the rows.

    Every figure here is a function of sums over rows, so a resample is how often each row is drawn, and all resamples
    are one product of matrices.

    Args:
        reference, other: (rows, columns), a line for each row that both models answered, in one order; at least one.
        statistic: from summed columns (…, columns) to figures (…).
    """
    assert reference.shape == other.shape
    rows = len(reference)
    random = np.random.default_rng(seed)
    both = np.concatenate([reference, other], axis=1)
    split = reference.shape[1]
    block = max(1, _DRAWN_AT_ONCE // rows)
    differences = []
    for start in range(0, resamples, block):
        counts = random.multinomial(rows, np.full(rows, 1 / rows), size=min(block, resamples - start))
        sums = counts @ both
        differences.append(statistic(sums[:, split:]) - statistic(sums[:, :split]))
    drawn = np.concatenate(differences)
    drawn = drawn[~np.isnan(drawn)]  # resamples of rows of which none counts
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) and rows > 1 else (np.nan, np.nan)
    differing = int((reference != other).any(axis=1).sum())
    return Difference(
        value=figure(other, statistic) - figure(reference, statistic),
        low=float(low),
        high=float(high),
        sure=differing >= LEAST_DIFFERING and bool(low > 0 or high < 0),
    )
