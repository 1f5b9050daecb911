from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_views import GIB, GRID, LIMIT

from hf_recipes.plan.pictures.axes import band_axis, memory_axis
from hf_recipes.plan.pictures.data import LengthGrid
from hf_recipes.plan.pictures.edge import edge, fitting, largest_fitting

SIZES = st.floats(0.01, 1e6)
BANDS = st.lists(SIZES, min_size=3, max_size=3).map(lambda three: tuple(sorted(three)))


@given(SIZES, st.lists(SIZES, max_size=6))
def test_an_axis_of_memory_shows_the_limit_and_what_comes_nearest(limit, totals):
    axis = memory_axis(limit, totals)
    assert axis.start == 0
    assert axis.end > limit
    nearest = max([limit, *totals] and [limit, min(totals, default=limit)])
    assert axis.place(nearest) >= 0.48  # half of the axis, less its margin of 4 %
    assert axis.end <= 1.04 * max([limit, *totals])
    assert [axis.place(total) for total in sorted(totals)] == sorted(axis.place(total) for total in totals)


def test_an_axis_of_memory_by_hand():
    assert memory_axis(24, [10, 30]).end == pytest.approx(31.2)  # all is shown, and 4 % margin
    assert memory_axis(24, [10, 1000]).end == pytest.approx(2 * 24 * 1.04)  # 1,000 is cut off
    assert memory_axis(24, [100, 1000]).end == pytest.approx(2 * 100 * 1.04)
    assert memory_axis(24, [10, 30]).ticks == (0, 10, 20, 30)
    assert memory_axis(0, []).place(0) == 0


@given(st.lists(BANDS, min_size=1, max_size=6))
def test_an_axis_of_bands_shows_them_whole(bands):
    axis = band_axis(bands)
    highest, lowest = max(band[2] for band in bands), min(band[0] for band in bands)
    assert axis.start <= lowest
    assert axis.end > highest
    assert 0 < axis.place(highest) < 1
    assert axis.log == (highest / lowest > 20)
    assert axis.place(lowest) == 0 or axis.start < lowest


@given(SIZES, SIZES, SIZES)
def test_a_logarithmic_axis_keeps_ratios(first, second, ratio):
    axis = band_axis([(0.001, 1, 1e7 * ratio)])
    points = [value for value in (first, first * 2, second, second * 2) if axis.start < value < axis.end]
    if len(points) == 4:
        assert axis.place(first * 2) - axis.place(first) == pytest.approx(axis.place(second * 2) - axis.place(second))


@given(st.lists(BANDS, min_size=1, max_size=6), SIZES)
def test_ticks_are_few_round_and_on_the_axis(bands, limit):
    for axis in (band_axis(bands), memory_axis(limit, [])):
        assert 1 <= len(axis.ticks) <= 9
        assert all(axis.start <= tick <= axis.end for tick in axis.ticks)
        for tick in axis.ticks:
            if tick and axis.log:
                assert float(f"{tick:e}".partition("e")[0]) in (1, 2, 5)
    assert all(tick == 0 or math.isclose(tick, float(f"{tick:.2g}")) for tick in memory_axis(limit, []).ticks)


def test_the_edge_by_hand():
    #   1 2 4
    # a F F x    the line goes right of the second column, then
    # b F x x    left one column
    pieces = edge([[True, True, False], [True, False, False]])
    assert sorted(pieces) == [((1, 1), (1, 2)), ((1, 1), (2, 1)), ((2, 0), (2, 1))]


@pytest.mark.parametrize("fits", [True, False])
def test_where_all_or_nothing_fits_there_is_no_edge(fits):
    assert edge([[fits] * 3] * 2) == []


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5))
def test_every_change_between_neighbours_is_a_piece(fits):
    across = sum(row[x] != row[x - 1] for row in fits for x in range(1, 4))
    down = sum(fits[y][x] != fits[y - 1][x] for y in range(1, len(fits)) for x in range(4))
    assert len(edge(fits)) == len(set(edge(fits))) == across + down


def test_the_largest_micro_batch_that_fits():
    # 4.8 GiB and 2.1 MiB a token: 18.7 GiB are 9,118 tokens, so 8,192 fit and 16,384 do not.
    assert largest_fitting(GRID, LIMIT) == [16, 8, 4, 2, 1]
    assert largest_fitting(GRID, 4 * GIB) == [None] * 5
    assert fitting(LengthGrid((1,), (1, 2), [[5.0, 6.0]]), 5.0) == [[True, False]]
