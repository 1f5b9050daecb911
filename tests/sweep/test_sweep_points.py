"""Axes → points, and the names of their runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.sweep.axes import Axis, Span
from hf_recipes.sweep.batch import global_batch
from hf_recipes.sweep.points import grid, identity, one_by_one, random_points, trial_name

VALUES = st.lists(st.integers(-9, 99), min_size=1, max_size=4, unique=True).map(tuple)
AXES = st.lists(VALUES, min_size=1, max_size=3).map(
    lambda all_values: [Axis(f"key{index}", values) for index, values in enumerate(all_values)]
)
RATE = Axis("learning_rate", span=Span(1e-6, 1e-3, log=True, whole=False))


@settings(deadline=None, max_examples=40)
@given(AXES)
def test_a_grid_holds_every_combination_once(axes):
    points = grid(axes)
    assert len(points) == math.prod(len(axis.values) for axis in axes)
    assert len({identity(point) for point in points}) == len(points)
    assert all(point[axis.key] in axis.values for point in points for axis in axes)


def test_a_million_trials_are_not_begun():
    with pytest.raises(UserError, match=r"1,000,000 trials: write --search random --trials N"):
        grid([Axis("a", tuple(range(1000))), Axis("b", tuple(range(1000)))])


def test_one_by_one_holds_every_value_and_the_ends_of_ranges():
    points = one_by_one([RATE, Axis("lora_r", (8, 16, 32))])
    assert [tuple(point.values()) for point in points] == [(1e-6, 8), (1e-3, 8), (1e-6, 16), (1e-6, 32)]


def test_a_grid_of_a_range_asks_for_values():
    with pytest.raises(UserError, match=r"--lr: a grid needs values: write 1e-06..0.001:5"):
        grid([RATE])


@settings(deadline=None, max_examples=40)
@given(AXES, st.integers(1, 40), st.integers(0, 9))
def test_drawn_points_are_different_and_as_many_as_there_are(axes, trials, seed):
    points = random_points(axes, trials, seed)
    assert len({identity(point) for point in points}) == len(points)
    assert len(points) == min(trials, len(grid(axes)))


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 9))
def test_more_trials_begin_with_the_same_points(few, more, seed):
    assert random_points([RATE], few + more, seed)[:few] == random_points([RATE], few, seed)


def test_rates_are_drawn_evenly_in_the_logarithm():
    # Of three decades, a third each: 600 draws give 200 ± 3 standard deviations of √(600 · 1/3 · 2/3) = 11.5.
    rates = [point["learning_rate"] for point in random_points([RATE], 600, seed=1)]
    assert all(abs(sum(low <= rate < 10 * low for rate in rates) - 200) < 35 for low in (1e-6, 1e-5, 1e-4))


def test_each_drawn_point_is_run_with_every_seed():
    points = random_points([RATE, Axis("seed", (1, 2, 3))], 4, seed=0)
    assert [point["seed"] for point in points] == [1, 2, 3] * 4
    assert len({point["learning_rate"] for point in points}) == 4


TEXTS = st.one_of(st.text(max_size=60), st.floats(allow_nan=False), st.booleans(), st.lists(st.text(max_size=9)))


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.dictionaries(st.sampled_from(["learning_rate", "method", "watch.x"]), TEXTS, min_size=1), max_size=4)
)
def test_names_are_file_names_and_tell_points_apart(points):
    names = {identity(point): trial_name(point) for point in points}
    for name in names.values():
        assert 0 < len(name) <= 80 and name[0] not in ".-" and not set(name) & set('/\\:*?"<>| \n')


def test_names_say_what_differs():
    assert trial_name({"learning_rate": 2e-5, "batch": 16, "method": "full"}) == "lr2e-05_batch16_method-full"
    assert trial_name({"lora_target_modules": ["q_proj", "v_proj"]}) == "targets-q_proj+v_proj"
    assert trial_name({"run": "a/b"}) != trial_name({"run": "a:b"})


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 512), st.integers(1, 8), st.integers(1, 64))
def test_a_global_batch_is_kept(rows, ranks, micro):
    if rows % ranks:
        with pytest.raises(UserError, match=f"multiple of {ranks}"):
            global_batch(rows, ranks, micro)
        return
    keys = global_batch(rows, ranks, micro)
    assert keys["per_device_train_batch_size"] * keys["gradient_accumulation_steps"] * ranks == rows
    assert keys["per_device_train_batch_size"] <= micro
