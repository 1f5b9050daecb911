from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.report.scale import linear_ticks, log_ticks, number, thin, wants_log

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=1e-300, max_value=1e300)


@given(FINITE, FINITE)
def test_linear_ticks_are_few_and_inside(low, high):
    ticks = linear_ticks(low, high)
    assert len(ticks) <= 6
    slack = abs(high - low) * 1e-9
    assert all(low - slack <= tick <= high + slack for tick in ticks) or high <= low


@given(POSITIVE, POSITIVE)
def test_log_ticks_are_few_and_inside(one, other):
    low, high = min(one, other), max(one, other)
    ticks = log_ticks(low, high)
    assert len(ticks) <= 6
    assert all(low * (1 - 1e-6) <= tick <= high * (1 + 1e-6) for tick in ticks)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    # 10 / 4 = 2.5 is a round step; 1 / 4 = 0.25 too; 7 / 4 = 1.75 rounds up to 2
    [(0, 10, [0, 2.5, 5, 7.5, 10]), (0, 1, [0, 0.25, 0.5, 0.75, 1]), (1, 8, [2, 4, 6, 8]), (3, 3, [3])],
)
def test_linear_ticks_by_hand(low, high, expected):
    assert linear_ticks(low, high) == pytest.approx(expected)


def test_log_ticks_by_hand():
    assert log_ticks(0.02, 30) == pytest.approx([0.1, 1, 10])
    assert log_ticks(1e-9, 1) == pytest.approx([1e-9, 1e-7, 1e-5, 1e-3, 1e-1])  # every second of ten decades
    assert log_ticks(2, 8) == linear_ticks(2, 8)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0"),
        (-0.0, "0"),
        (1, "1"),
        (0.5, "0.5"),
        (1234.56, "1235"),
        (2e-5, "2e-5"),
        (0.00012345, "1.23e-4"),
        (1.5e6, "1.5e6"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
    ],
)
def test_numbers_are_short(value, shown):
    assert number(value) == shown


@given(FINITE)
def test_a_shown_number_is_within_a_hundredth(value):
    shown = number(value)
    assert len(shown) <= 10
    if 1e-300 < abs(value) < 1e300:
        assert float(shown) == pytest.approx(value, rel=6e-3)


def test_a_logarithm_only_for_positive_values_of_a_wide_range():
    assert wants_log([0.01, 1.0])
    assert not wants_log([0.1, 1.0])
    assert not wants_log([0.0, 1.0])
    assert not wants_log([-1.0, 100.0])
    assert not wants_log([])


@given(st.lists(FINITE, min_size=1, max_size=500), st.integers(10, 60))
def test_thinning_keeps_the_extremes_in_order(values, limit):
    points = list(enumerate(values))
    kept = thin(points, limit)
    assert len(kept) <= limit + 2
    assert kept == [point for point in points if point in set(kept)]
    assert {min(values), max(values)} <= {value for _, value in kept}
