"""How a budget is shared out."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.training.overfit.budget import PASSES, STEP_IN_FORWARDS, budget_seconds, plan_test

FEW = settings(max_examples=30, deadline=None)


@pytest.mark.parametrize(
    ("planned", "limit", "seconds"), [(0, 1e9, 30), (100, 1e9, 30), (3600, 1e9, 360), (36000, 900, 900)]
)
def test_half_a_minute_or_a_tenth_of_the_run_and_never_beyond_what_ranks_wait(planned, limit, seconds):
    assert budget_seconds(planned, limit=limit) == seconds


@FEW
@given(st.floats(1, 1e4), st.floats(1e-6, 100), st.integers(1, 1000))
def test_at_least_eight_rows_at_most_those_there_are_and_more_only_in_time(seconds, row_seconds, samples):
    plan = plan_test(seconds, row_seconds, samples)
    assert min(8, samples) <= plan.learned_rows <= samples
    if plan.learned_rows > 8:
        assert plan.learned_rows * PASSES * STEP_IN_FORWARDS * row_seconds <= seconds / 2 + 1e-6
    assert plan.answer_rows <= samples
    assert plan.rate_steps in (1, 2)


def test_a_fast_device_learns_all_a_slow_one_eight():
    assert plan_test(30.0, 0.001, 100).learned_rows == 100
    slow = plan_test(30.0, 1.0, 100)
    assert (slow.learned_rows, slow.answer_rows, slow.rate_steps) == (8, 0, 1)
