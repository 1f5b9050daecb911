"""Bandwidths by nccl-tests' definitions, and times between measured sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.doctor.network.curve import COLLECTIVES, Timing, curves, sizes


@pytest.mark.parametrize(
    ("collective", "factor"),
    # doc/PERFORMANCE.md of nccl-tests at n = 8: 2·7/8, 7/8, 7/8, 1.
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("broadcast", 1.0)],
)
def test_bandwidths_are_those_of_nccl_tests(collective, factor):
    timing = Timing(collective, 64 << 20, 0.01, 8)
    assert timing.algorithm_bandwidth == (64 << 20) / 0.01
    assert timing.bus_bandwidth == pytest.approx(factor * timing.algorithm_bandwidth)


def test_a_time_lies_on_the_line_between_the_sizes_around_it():
    curve = curves([Timing("broadcast", 1000, 0.001, 2), Timing("broadcast", 3000, 0.002, 2)])["broadcast"]
    assert curve.seconds(2000) == pytest.approx(0.0015)
    assert curve.seconds(10) == 0.001  # no message is quicker than the smallest
    assert curve.seconds(6000) == pytest.approx(0.004)  # at the largest's speed
    assert curve.seconds(0) == 0
    assert curve.latency_seconds == 0.001
    assert curve.bus_bandwidth == pytest.approx(1.5e6)


@given(
    st.lists(
        st.tuples(st.integers(1, 10**9), st.floats(1e-6, 10)), min_size=1, max_size=8, unique_by=lambda row: row[0]
    ),
    st.floats(1, 2e9),
)
def test_a_curve_passes_through_what_was_measured_and_stays_between(rows, size):
    curve = curves([Timing("all_gather", count, seconds, 4) for count, seconds in rows])["all_gather"]
    for count, seconds in rows:
        assert curve.seconds(count) == pytest.approx(seconds)
    if size <= max(count for count, _ in rows):
        known = [seconds for _, seconds in rows]
        assert min(known) * (1 - 1e-9) <= curve.seconds(size) <= max(known) * (1 + 1e-9)


def test_curves_are_of_what_was_measured_only():
    made = curves([Timing("all_reduce", 8, 1.0, 2), Timing("all_reduce", 4, 1.0, 2)])
    assert list(made) == ["all_reduce"]
    assert [timing.size_bytes for timing in made["all_reduce"].timings] == [4, 8]
    assert set(made) < set(COLLECTIVES)


@given(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(2, 8))
def test_sizes_rise_to_the_largest(smallest, largest, factor):
    found = sizes(smallest, largest, factor)
    assert found == sorted(set(found))
    assert found[-1] == largest
