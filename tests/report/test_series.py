from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.report.series import Series, as_number

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_non_finite_values_break_the_line():
    curve = Series.of(enumerate([1.0, 0.5, math.nan, 0.4, math.inf, -math.inf], start=1))
    assert [segment.points for segment in curve.segments()] == [[(1, 1.0), (2, 0.5)], [(4, 0.4)]]
    assert curve.bad == [(3, "nan"), (5, "inf"), (6, "-inf")]


def test_what_is_no_number_is_passed_over():
    assert [as_number(value) for value in (True, None, [], {}, "", "abc", 10**400)] == [None] * 7
    assert as_number("2.5") == 2.5


@given(st.lists(st.tuples(st.integers(0, 50), st.floats()), max_size=40))
def test_a_series_ascends_and_keeps_the_last_of_equal_steps(rows):
    curve = Series.of(rows)
    expected = sorted(dict(rows).items())
    assert curve.steps.tolist() == [step for step, _ in expected]
    assert np.array_equal(curve.values, [value for _, value in expected], equal_nan=True)
    assert len(curve.points) + len(curve.bad) == len(expected)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=40, unique_by=lambda item: item[0]))
def test_segments_hold_every_finite_point_in_order(rows):
    curve = Series.of((step, float(step) if good else math.nan) for step, good in rows)
    segments = [segment.points for segment in curve.segments()]
    assert [point for segment in segments for point in segment] == curve.points
    for segment in segments:
        assert not any(segment[0][0] < step < segment[-1][0] for step, _ in curve.bad)


@given(st.lists(FINITE, min_size=1, max_size=500), st.integers(10, 60))
def test_thinning_keeps_the_extremes_in_order(values, limit):
    curve = Series.of(enumerate(values))
    kept = curve.thinned(limit).points
    assert len(kept) <= limit + 2
    assert kept == [point for point in curve.points if point in set(kept)]
    assert {min(values), max(values)} <= {value for _, value in kept}
