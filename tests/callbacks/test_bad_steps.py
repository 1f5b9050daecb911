"""The rule of skipped and stopped steps, as properties."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.bad_steps import BadSteps


@settings(deadline=None)
@given(st.lists(st.booleans(), max_size=40), st.integers(1, 5))
def test_only_limit_bad_steps_in_a_row_stop(bad, limit):
    rule = BadSteps(limit)
    decisions = [rule.judge(each) for each in bad]
    for position, decision in enumerate(decisions):
        row = bad[max(0, position - limit + 1) : position + 1]
        stop = len(row) == limit and all(row)
        assert decision == ("stop" if stop else "skip" if bad[position] else "go")
    assert rule.total == sum(bad)


def test_a_step_can_have_its_own_limit():
    rule = BadSteps(1)
    assert [rule.judge(True, limit=3) for _ in range(3)] == ["skip", "skip", "stop"]


def test_state_round_trip():
    rule = BadSteps(3)
    rule.judge(True)
    rule.judge(True)
    again = BadSteps(3)
    again.load_state_dict(rule.state_dict())
    assert again.judge(True) == "stop"
