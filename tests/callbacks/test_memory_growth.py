"""The pure detector: leaks are found, and what only looks like one is not."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.memory_growth import MemoryGrowth, leak_detectors

GB = 1e9

# No deadline: other processes may take the machine.
unhurried = settings(deadline=None, max_examples=25)


def first_alarms(values, detector=None):
    """The steps, from 0, at which an alarm would be raised."""
    detector = detector or MemoryGrowth()
    return [step for step, value in enumerate(values) if detector.judge(value).first]


def leaking(steps, start, rate, level=GB, noise=0.0, seed=0):
    """Memory that grows by `rate` bytes at each step from `start` on, under noise of up to `noise` of the level."""
    chance = random.Random(seed)
    return [level * (1 + noise * chance.random()) + max(0, step - start + 1) * rate for step in range(steps)]


@unhurried
@given(start=st.integers(16, 80), seed=st.integers(0, 10_000), noise=st.floats(0, 0.01), level=st.floats(1e8, 1e11))
def test_half_a_percent_a_step_is_found_within_50_steps(start, seed, noise, level):
    (step,) = first_alarms(leaking(start + 120, start, 0.005 * level, level, noise, seed))
    assert start < step <= start + 50


@unhurried
@given(start=st.integers(16, 80), rate=st.floats(1.5e6, 1e8), level=st.floats(2 * GB, 100 * GB))
def test_a_few_megabytes_a_step_are_found_on_any_level(start, rate, level):
    (step,) = first_alarms(leaking(start + 120, start, rate, level))
    assert step <= start + 43  # 7.3 windows of 6 steps


def test_the_rate_is_told():
    detector = MemoryGrowth()
    verdicts = [detector.judge(value) for value in leaking(100, 40, 3e6)]
    assert next(verdict.bytes_a_step for verdict in verdicts if verdict.first) == pytest.approx(3e6, rel=0.2)
    assert verdicts[-1].bytes_a_step == pytest.approx(3e6)
    assert verdicts[-1].kind == "leak"


def test_a_slow_leak_is_found_by_the_slow_detector_only():
    quick, slow = leak_detectors()
    values = leaking(600, 100, 0.2e6)
    assert first_alarms(values, quick) == []
    (step,) = first_alarms(values, slow)
    assert step <= 100 + 351


def test_noise_as_loud_as_the_level_itself_seldom_alarms():
    """Six even rises in a row happen by chance: in 2 of 1,000 such runs of 1,500 steps, counted over 1,500 seeds."""
    alarmed = 0
    for seed in range(200):
        values = leaking(1500, 0, 0.0, noise=1.0, seed=seed)
        alarmed += any(first_alarms(values, detector) for detector in leak_detectors())
    assert alarmed <= 2


@unhurried
@given(tau=st.floats(1, 12), growth=st.floats(0, 2))
def test_no_alarm_on_warm_up_that_dies_down(tau, growth):
    values = [GB * (1 + growth * (1 - math.exp(-step / tau))) for step in range(400)]
    for detector in leak_detectors():
        assert first_alarms(values, detector) == []


@unhurried
@given(at=st.integers(0, 300), jump=st.floats(0, 3))
def test_no_alarm_on_one_change_of_level(at, jump):
    values = [GB * (1 + (jump if step >= at else 0)) for step in range(800)]
    for detector in leak_detectors():
        assert first_alarms(values, detector) == []


@unhurried
@given(period=st.integers(2, 60), height=st.floats(0, 2), kept=st.integers(1, 59))
def test_no_alarm_on_a_saw_tooth_of_evaluations(period, height, kept):
    """Each evaluation raises memory for a part of the time up to the next."""
    values = [GB * (1 + (height if step % period < min(kept, period - 1) else 0)) for step in range(600)]
    for detector in leak_detectors():
        assert first_alarms(values, detector) == []


@unhurried
@given(period=st.integers(2, 36), height=st.floats(0, 1))
def test_no_alarm_on_lengths_that_rise_and_begin_again(period, height):
    """Sorted by length within shuffled chunks: memory climbs evenly through each chunk."""
    values = [GB * (1 + height * (step % period) / period) for step in range(600)]
    assert first_alarms(values) == []


def test_no_alarm_on_records_of_random_lengths():
    """An allocator that keeps what the longest batch so far needed: rises get rarer and smaller."""
    for seed in range(50):
        chance, most, values = random.Random(seed), 0.0, []
        for _ in range(1000):
            most = max(most, chance.random())
            values.append(GB * (1 + most))
        for detector in leak_detectors():
            assert first_alarms(values, detector) == []


def test_one_alarm_a_series_and_another_for_another():
    still = [leaking(200, 50, 2e6)[-1]] * 100
    again = [still[0] + step * 2e6 for step in range(100)]
    assert len(first_alarms(leaking(200, 50, 2e6) + still)) == 1
    assert len(first_alarms(leaking(200, 50, 2e6) + still + again)) == 2


@unhurried
@given(seed=st.integers(0, 1000), factor=st.floats(1e-3, 1e-1))
def test_scale_changes_nothing_below_the_limit_in_bytes(seed, factor):
    """Below 400 MB the limit is a share of the level (0.25 % of 400 MB are 1 MB)."""
    values = leaking(150, 40, 1.5e6, 0.3 * GB, 0.01, seed)
    assert first_alarms([value * factor for value in values]) == first_alarms(values)


@unhurried
@given(at=st.integers(0, 199))
def test_resume_at_any_point_equals_the_unbroken_run(at):
    values = leaking(200, 90, 4e6, noise=0.01)
    unbroken, first, second = MemoryGrowth(), MemoryGrowth(), MemoryGrowth()
    expected = [unbroken.judge(value) for value in values]
    seen = [first.judge(value) for value in values[:at]]
    second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    assert seen + [second.judge(value) for value in values[at:]] == expected


@unhurried
@given(bad=st.sampled_from([math.nan, math.inf, -math.inf]), at=st.integers(0, 100))
def test_t6_what_is_not_finite_leaves_the_state_alone(bad, at):
    detector = MemoryGrowth()
    for value in leaking(at, 20, 4e6):
        detector.judge(value)
    before = detector.state_dict()
    assert not detector.judge(bad).first
    assert detector.state_dict() == before
