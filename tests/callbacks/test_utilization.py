"""Clocks as plain numbers: where a step's time goes, and what is worth an alarm."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.utilization import DataWaitTrend, Moment, SlowDown, StepClock, StepTimes, limited_by, speeds

# No deadline: other processes may take the machine.
unhurried = settings(deadline=None, max_examples=25)


def step(seconds, wait=0.0, positions=100, supervised=40, cpu_seconds=0.0):
    return StepTimes(seconds, wait, cpu_seconds, 0.0, positions, supervised)


def test_the_clock_cuts_a_run_into_steps_and_waits():
    clock = StepClock()
    clock.other_work(9.0, hides_wait=False)
    clock.begin(Moment(10.0, 5.0, 1.0))
    first = clock.end(Moment(12.0, 6.5, 1.25), 100, 40)
    # Before the first step batches may be skipped, so nothing is known of waiting.
    assert first == StepTimes(2.0, None, 1.5, 0.25, 100, 40)
    clock.other_work(13.0, hides_wait=False)  # a log, or an epoch's end, took a second
    clock.begin(Moment(13.5, 6.5))
    assert clock.end(Moment(14.0, 6.5), 100, 40).wait == 0.5
    clock.other_work(20.0, hides_wait=True)  # an evaluation
    clock.other_work(21.0, hides_wait=False)
    clock.begin(Moment(30.0, 7.0))
    assert clock.end(Moment(31.0, 7.0), 100, 40).wait is None
    clock.begin(Moment(31.25, 7.0))
    assert clock.end(Moment(32.0, 7.0), 100, 40).wait == 0.25


def test_speeds_of_a_window():
    # 2 steps of 100 positions in (1 + 0.25) + (2 + 0.75) = 4 s, of which 1 s waited; 2 threads × 3 s within steps.
    window = [step(1.0, 0.25, cpu_seconds=1.0), step(2.0, 0.75, cpu_seconds=3.5)]
    assert speeds(window, 2) == pytest.approx(
        {
            "tokens_per_second": 50.0,
            "supervised_tokens_per_second": 20.0,
            "step_seconds": 2.0,
            "data_wait_share": 0.25,
            "cpu_utilization": 0.75,
        }
    )


def test_a_step_whose_wait_is_not_known_is_left_out_unless_all_are():
    known, unknown = step(1.0, 1.0), step(1.0, None)
    assert speeds([known, unknown], 1)["tokens_per_second"] == 50.0
    only = speeds([unknown], 1)
    assert only["tokens_per_second"] == 100.0
    assert "data_wait_share" not in only
    assert speeds([step(0.0, None)], 1) == {}  # a clock too coarse


def rings(trend, steps):
    return [number for number, each in enumerate(steps) if trend.see(each)]


@unhurried
@given(seconds=st.floats(0.5, 60), share=st.floats(0.25, 0.95), healthy=st.integers(0, 60))
def test_waiting_for_batches_rings_once_within_50_steps(seconds, share, healthy):
    waiting = step(seconds, seconds * share / (1 - share))
    steps = [step(seconds, 0.0)] * healthy + [waiting] * 100
    if waiting.wait * 40 < 5:  # less than 5 s in 40 steps: rings later
        return
    (number,) = rings(DataWaitTrend(), steps)
    assert healthy <= number < healthy + 50


@unhurried
@given(seconds=st.floats(1e-3, 1e-2))
def test_tiny_waits_ring_only_when_they_add_up(seconds):
    """Half of the time waited, but 5 s are reached only after thousands of steps."""
    (number,) = rings(DataWaitTrend(), [step(seconds, seconds)] * 6000)
    assert number * seconds >= 5 - 21 * seconds


@unhurried
@given(seed=st.integers(0, 10_000), every=st.integers(3, 50), gap=st.floats(0, 1000))
def test_healthy_waits_never_ring(seed, every, gap):
    """5 % of the time on average, and one long gap now and then: an epoch's first batch, a page written."""
    chance = random.Random(seed)
    steps = [step(1.0, gap if number % every == 0 else 0.1 * chance.random()) for number in range(400)]
    assert rings(DataWaitTrend(), steps) == []


def test_data_wait_tells_how_much():
    trend = DataWaitTrend()
    said = [verdict for _ in range(60) if (verdict := trend.see(step(1.0, 1.0)))]
    assert [(verdict.share, verdict.seconds) for verdict in said] == [(0.5, 20.0)]


def slow_rings(times, positions=None):
    detector = SlowDown()
    sizes = positions or [1000] * len(times)
    return [number for number, each in enumerate(zip(times, sizes, strict=True)) if detector.see(*each)]


def noisy(seed, count, base=0.5):
    """Steps as on a shared machine: ±20 %, and bursts of up to 8 steps three times as slow."""
    chance = random.Random(seed)
    times = [base * (0.8 + 0.4 * chance.random()) for _ in range(count)]
    for start in range(chance.randrange(40), count, 40):
        for number in range(start, min(count, start + chance.randrange(9))):
            times[number] *= 3
    return times


@unhurried
@given(seed=st.integers(0, 10_000))
def test_noise_of_a_busy_machine_does_not_ring(seed):
    assert slow_rings(noisy(seed, 600)) == []


@unhurried
@given(seed=st.integers(0, 10_000), factor=st.floats(3, 20), start=st.integers(60, 200))
def test_a_lasting_slow_down_rings_once_within_50_steps(seed, factor, start):
    times = noisy(seed, start + 150)
    times[start:] = [time * factor for time in times[start:]]
    (number,) = slow_rings(times)
    assert start <= number <= start + 50


@unhurried
@given(seed=st.integers(0, 10_000))
def test_longer_batches_are_no_slow_down(seed):
    """Time grows with the square of the length; the second half of the run has the long ones."""
    chance = random.Random(seed)
    lengths = [chance.randint(100, 500 if number < 300 else 4000) for number in range(600)]
    assert slow_rings([0.1 + (length / 1000) ** 2 for length in lengths], lengths) == []


@unhurried
@given(seed=st.integers(0, 10_000))
def test_a_slow_start_is_no_slow_down(seed):
    """Compilation and warm-up: the first steps are the slow ones."""
    times = noisy(seed, 300)
    times[:20] = [time * 50 for time in times[:20]]
    assert slow_rings(times) == []


def test_growing_ever_slower_rings():
    """One hundredth more at each step, 2.7 times as slow after a hundred."""
    times = [0.5 * 1.01 ** max(0, number - 60) for number in range(260)]
    (number,) = slow_rings(times)
    assert number < 60 + 130


def test_a_slow_down_that_saves_nobody_a_second_does_not_ring():
    assert slow_rings([0.005] * 100 + [0.02] * 100) == []  # 1.5 s lost


def test_slow_again_rings_again():
    assert len(slow_rings([0.5] * 100 + [2.0] * 60 + [0.5] * 60 + [2.0] * 60)) == 2


@unhurried
@given(bad=st.sampled_from([math.nan, math.inf, 0.0, -1.0]))
def test_t6_a_clock_gone_wrong_is_passed_over(bad):
    times = [0.5] * 100 + [2.0] * 60
    with_bad = [value for time in times for value in (time, bad)]
    assert [number // 2 for number in slow_rings(with_bad)] == slow_rings(times)


def test_what_limits_a_run():
    def say(wait, use, device="cuda", queued=0.0):
        return limited_by(wait, use, queued, device, 0.8, 0.2)

    assert "dataloader_num_workers" in say(0.3, 0.5)
    assert "per_device_train_batch_size" in say(0.1, 0.5)
    assert say(0.1, 0.8) == "The GPU is the limit, as it should be."
    assert "OMP_NUM_THREADS" in say(0.1, 0.5, "cpu")
    assert say(0.1, 0.5, "cpu", 0.5).startswith("Other processes have the CPU for 50% of the time")
    assert say(0.1, None) == ""
    assert say(None, 0.9, "cpu") == "The CPU is the limit, as it should be."
