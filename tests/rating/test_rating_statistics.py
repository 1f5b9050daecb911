from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.evaluation.rating.statistics import (
    cohen_kappa,
    krippendorff_alpha,
    nominal,
    ordinal,
    percent_agreement,
    wilson,
)

# Krippendorff 2011, "Computing Krippendorff's alpha-reliability", section C: four observers, twelve units, gaps.
OBSERVERS = [
    [1, 2, 3, 3, 2, 1, 4, 1, 2, None, None, None],
    [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, None, 3],
    [None, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, None],
    [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, None],
]
UNITS = [[label for label in unit if label is not None] for unit in zip(*OBSERVERS, strict=True)]
LABELS = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=12)


def test_alpha_of_the_literature():
    assert krippendorff_alpha(UNITS, nominal) == pytest.approx(0.743, abs=5e-4)
    assert krippendorff_alpha(UNITS, ordinal) == pytest.approx(0.815, abs=5e-4)


def test_kappa_of_two_raters():
    # 20 both yes, 5 and 10 apart, 15 both no: p_o = 35/50; p_e = (25·30 + 25·20)/50² = 1/2; κ = 0.2/0.5
    pairs = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    assert cohen_kappa(*zip(*pairs, strict=True)) == pytest.approx(0.4)
    assert math.isnan(cohen_kappa("aaa", "aaa"))
    assert cohen_kappa("ab", "ba") == pytest.approx(-1)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, "Two-sided confidence intervals for the single proportion", table I
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_intervals_of_the_literature(successes, count, low, high):
    assert wilson(successes, count) == pytest.approx((low, high), abs=1e-4)


def test_wilson_covers_the_true_share():
    generator = random.Random(0)
    inside = 0
    for _ in range(2000):
        wins = sum(generator.random() < 0.7 for _ in range(40))
        low, high = wilson(wins, 40)
        inside += low <= 0.7 <= high
    assert 0.93 < inside / 2000 < 0.975


def test_percent_counts_pairs():
    # of the first item's three pairs one agrees, of the second's one pair one; the third has no pair
    assert percent_agreement([["a", "a", "b"], ["c", "c"], ["d"]]) == pytest.approx(2 / 4)
    assert math.isnan(percent_agreement([["a"]]))


@settings(deadline=None)
@given(LABELS)
def test_all_alike_is_one_and_order_does_not_matter(units):
    alike = [[unit[0]] * 2 for unit in units]
    if len({unit[0] for unit in units}) > 1:
        assert krippendorff_alpha(alike, nominal) == krippendorff_alpha(alike, ordinal) == 1
    else:
        assert math.isnan(krippendorff_alpha(alike, nominal))
    turned = [unit[::-1] for unit in units][::-1]
    for distance in (nominal, ordinal):
        one, other = krippendorff_alpha(units, distance), krippendorff_alpha(turned, distance)
        assert one == pytest.approx(other, nan_ok=True)
        assert math.isnan(one) or one <= 1 + 1e-12


@settings(deadline=None)
@given(LABELS)
def test_two_labels_are_as_far_apart_in_order_as_by_name(units):
    two = [[1 + label % 2 for label in unit] for unit in units]
    assert krippendorff_alpha(two, ordinal) == pytest.approx(krippendorff_alpha(two, nominal), nan_ok=True)
