"""The rule of skipped, restored and stopped steps, as properties."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.bad_steps import BadSteps

STEPS = st.lists(st.booleans(), max_size=40)


@settings(deadline=None)
@given(STEPS, st.integers(1, 5))
def test_only_limit_bad_steps_in_a_row_stop(bad, limit):
    rule = BadSteps(limit)
    decisions = [rule.judge(each) for each in bad]
    for position, decision in enumerate(decisions):
        row = bad[max(0, position - limit + 1) : position + 1]
        stop = len(row) == limit and all(row)
        assert decision == ("stop" if stop else "skip" if bad[position] else "go")
    assert rule.total == sum(bad)


@settings(deadline=None)
@given(STEPS, st.integers(1, 5))
def test_so_many_bad_steps_of_a_run_are_restored_and_the_next_stops(bad, max_restores):
    rule = BadSteps(1, max_restores)
    decisions = [rule.judge(each) for each in bad]
    expected = (["restore"] * max_restores + ["stop"] * len(bad))[: sum(bad)]
    assert [decision for decision in decisions if decision != "go"] == expected
    assert rule.restores == min(sum(bad), max_restores)


@settings(deadline=None)
@given(STEPS, st.integers(0, 40), st.integers(1, 5), st.one_of(st.none(), st.integers(1, 5)))
def test_a_resumed_rule_decides_as_an_unbroken_one(bad, broken_at, limit, max_restores):
    unbroken, first, second = (BadSteps(limit, max_restores) for _ in range(3))
    first_half = [first.judge(each) for each in bad[:broken_at]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert first_half + [second.judge(each) for each in bad[broken_at:]] == [unbroken.judge(each) for each in bad]


def test_a_step_can_have_its_own_limit_and_is_then_never_restored():
    rule = BadSteps(1)
    assert [rule.judge(True, limit=3) for _ in range(3)] == ["skip", "skip", "stop"]
    rule = BadSteps(1, max_restores=1)
    assert [rule.judge(True, limit=3) for _ in range(3)] == ["skip", "skip", "stop"]


def test_weights_that_are_bad_themselves_are_restored_or_stop():
    assert BadSteps(10).judge(True, weights_bad=True) == "stop"
    assert BadSteps(10, max_restores=1).judge(True, weights_bad=True) == "restore"


def test_a_state_of_an_older_version_is_taken_up():
    rule = BadSteps(3)
    rule.load_state_dict({"in_a_row": 2, "total": 5})
    assert rule.judge(True) == "stop"
    assert (rule.restores, rule.files) == (0, 0)
