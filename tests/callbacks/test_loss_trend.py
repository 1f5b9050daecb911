"""What is said of a loss curve: nothing of healthy ones, and of each fault within its time."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.loss_trend import LossTrend

LOSSES = st.floats(0.5, 20.0)
BAD = st.sampled_from([math.nan, math.inf, -math.inf])
TOLD = {"spike", "rising", "shifted", "oscillating", "stuck", "unlearned"}
SEEDS = range(6)


def see_all(losses, trend=None, start=1, **thresholds):
    trend = trend or LossTrend(**thresholds)
    return trend, [trend.see(step, loss) for step, loss in enumerate(losses, start)]


def told(verdicts):
    return [(verdict.kind, verdict.step) for verdict in verdicts if verdict.first and verdict.kind in TOLD]


def falling(noise, random_, steps=400, start=2.5, end=1.0, over=60.0):
    """Exponential decay with log-normal noise."""
    curve = (end + (start - end) * math.exp(-step / over) for step in range(steps))
    return [loss * math.exp(random_.gauss(0, noise)) for loss in curve]


def of_tails(random_, noise=0.15):
    """Student's t with four degrees of freedom, over the sigma of 8 once in about 700 steps: batches of odd rows."""
    tail = random_.gauss(0, 1) / math.sqrt(sum(random_.gauss(0, 1) ** 2 for _ in range(4)) / 4)
    return math.exp(noise * max(min(tail, 6), -6))


def classes(step, random_):
    """A classifier's batch of eight rows, one row in a hundred labelled wrongly."""
    typical = 0.7 * math.exp(-step / 80) + 0.02
    return sum(random_.expovariate(1 / typical) if random_.random() > 0.01 else 3.0 for _ in range(8)) / 8


HEALTHY = {
    "quiet decay": lambda r: falling(0.01, r),
    "noisy decay": lambda r: falling(0.1, r),
    "rows of one": lambda r: falling(0.5, r),
    "from scratch": lambda r: falling(0.05, r, start=11, end=3, over=100),
    "down to nothing": lambda r: falling(0.5, r, start=3, end=1e-4, over=20),
    "heavy tails": lambda r: [loss * of_tails(r) for loss in falling(0.0, r)],
    "plateau": lambda r: falling(0.1, r, start=1.3, end=1.3),
    "wide plateau": lambda r: falling(0.4, r, start=1.3, end=1.3),
    "two batches in turn": lambda r: [x * (1.4, 0.7)[i % 2] for i, x in enumerate(falling(0.01, r))],
    "five batches in turn": lambda r: [x * (1.4, 0.7, 1, 2, 0.9)[i % 5] for i, x in enumerate(falling(0.02, r))],
    "drops at epochs": lambda r: [2 * 0.7 ** (step // 100) * math.exp(r.gauss(0, 0.08)) for step in range(400)],
    "rises inside epochs": lambda r: [
        2 * 0.75 ** (step // 100) * (1 + 0.0006 * (step % 100)) * math.exp(r.gauss(0, 0.05)) for step in range(400)
    ],
    "a hump at the restart": lambda r: [
        x * (1 + 0.15 * math.sin(math.pi * min(max(i - 200, 0), 60) / 60)) for i, x in enumerate(falling(0.05, r))
    ],
    "two sources": lambda r: [loss * (1.8 if r.random() < 0.2 else 1) for loss in falling(0.15, r)],
    "classes, some wrong": lambda r: [classes(step, r) for step in range(400)],
    "a small scale": lambda r: [0.01 * loss for loss in falling(0.5, r)],
    "below zero": lambda r: [loss - 3 for loss in falling(0.05, r)],
}


@pytest.mark.parametrize("kind", HEALTHY)
def test_a_healthy_curve_is_no_alarm(kind):
    for seed in SEEDS:
        _, verdicts = see_all(HEALTHY[kind](random.Random(seed)))
        assert told(verdicts) == [], seed


def delays(fault, at, within, noise=0.05, kinds=TOLD):
    """For each seed a run of `at` healthy steps, then `fault(step of the fault, level, random)`: what it was called."""
    names = set()
    for seed in SEEDS:
        random_ = random.Random(seed)
        before = falling(noise, random_, steps=at, end=1.0, over=25)
        after = [fault(step, math.exp(random_.gauss(0, noise)), random_) for step in range(100)]
        seen = told(see_all(before + after)[1])
        assert seen and seen[0][1] > at, (seed, seen)
        found = [(kind, step - at - 1) for kind, step in seen if kind in kinds]
        assert found and found[0][1] <= within, (seed, seen)
        names.add(found[0][0])
    return names


@pytest.mark.parametrize("at", [24, 60, 300])
def test_a_spike_is_told_at_its_step(at):
    assert delays(lambda step, noise, r: 8 * noise if step == 0 else noise, at, within=0) == {"spike"}


def test_a_wreck_is_a_spike_and_then_a_rise():
    def wreck(step, noise, random_):
        return 8 * noise

    assert delays(wreck, 200, within=0) == {"spike"}
    assert delays(wreck, 200, within=24, kinds={"rising"}) == {"rising"}


@pytest.mark.parametrize("at", [150, 300])
def test_a_drift_is_told_within_fifty_steps(at):
    assert delays(lambda step, noise, r: (1 + 0.012 * step) * noise, at, within=50) == {"rising"}


@pytest.mark.parametrize("at", [40, 300])
def test_an_explosion_is_told_sooner(at):
    assert delays(lambda step, noise, r: 1.15**step * noise, at, within=20) <= {"rising", "spike"}


def test_an_explosion_from_the_start_is_told_before_there_is_a_band():
    _, verdicts = see_all([3.2, 3.9, 6.0, 14.0, 30.0, 60.0, 110.0])
    assert told(verdicts)[0][0] in {"rising", "spike"}
    assert told(verdicts)[0][1] <= 7


def test_another_level_below_the_first_is_one_note():
    for seed in SEEDS:
        random_ = random.Random(seed)
        losses = falling(0.03, random_, steps=200, start=2.5, over=30)
        losses += [1.5 * math.exp(random_.gauss(0, 0.03)) for _ in range(200)]
        assert [kind for kind, _ in told(see_all(losses)[1])] == ["shifted"], seed


def test_a_rise_that_goes_with_the_length_of_rows_is_not_told():
    def run(with_lengths):
        trend, random_, seen = LossTrend(), random.Random(1), []
        for step in range(1, 300):
            length = 900 / (1 + step / 40)  # sorted, longest first: short answers have the higher loss
            loss = (1 + step / 250) * math.exp(random_.gauss(0, 0.03))
            seen.append(trend.see(step, loss, length=length if with_lengths else 500.0))
        return told(seen)

    assert run(with_lengths=True) == []
    assert run(with_lengths=False)[0][0] == "rising"


def test_growing_swings_are_oscillation_and_even_ones_are_not():
    def swing(width):
        return lambda step, noise, random_: 1.2 + width(step) * (-1) ** step + 0.02 * (noise - 1)

    assert delays(swing(lambda step: 0.3 + 0.01 * min(step, 50)), 200, within=30) == {"oscillating"}
    even = [1.2 + 0.3 * (-1) ** step for step in range(300)]
    assert told(see_all(even)[1]) == []


@pytest.mark.parametrize("at", [3, 40, 300])
def test_a_frozen_loss_is_stuck_at_its_fifth_step(at):
    assert delays(lambda step, noise, r: 1.2345678, at, within=4, kinds={"stuck"}) == {"stuck"}


def test_losses_held_in_bf16_are_given_more_steps():
    values = [1.2345678] * 4 + [0.69140625] * 29  # 177/256: bfloat16 holds it
    trend, verdicts = see_all(values)
    assert told(verdicts) == []
    assert told(see_all([0.69140625], trend, start=34)[1]) == [("stuck", 34)]


def test_a_loss_that_hardly_moves_is_stuck():
    assert told(see_all([2.0 + 1e-6 * step for step in range(12)])[1]) == [("stuck", 10)]
    assert told(see_all([2.0 - 1e-3 * step for step in range(12)])[1]) == []


def test_steps_at_no_learning_rate_are_not_counted():
    trend = LossTrend()
    assert {trend.see(step, 1.2345678, learning_rate_share=0.0).kind for step in range(1, 30)} == {
        "warming_up",
        "healthy",
    }
    assert [trend.see(step, 1.2345678).kind for step in range(30, 34)] == ["healthy"] * 4
    assert trend.see(34, 1.2345678).kind == "stuck"


def test_a_converged_constant_is_healthy_and_zero_from_the_start_is_not():
    assert told(see_all([3.0, 1.0, 0.1, *[1e-3] * 50])[1]) == []
    assert told(see_all([3.0, 1.0, 0.1, *[0.0] * 50])[1]) == []
    assert told(see_all([0.0] * 20)[1]) == [("stuck", 5)]


def test_a_loss_at_the_level_of_the_prior_is_stuck_and_the_level_is_asked_for_only_then():
    asked = []
    trend = LossTrend()
    trend.reference_levels = lambda: asked.append(1) or {"the prior": math.log(2), "another": 3.0}
    random_ = random.Random(0)
    curve = [1.5, 1.2, 0.9, 0.8] + [math.log(2) * math.exp(random_.gauss(0, 0.02)) for _ in range(130)]
    _, verdicts = see_all(curve[:40], trend)
    assert not asked
    _, verdicts = see_all(curve[40:], trend, start=41)
    (noted, note_step), (kind, step) = told(verdicts)
    assert (noted, note_step <= 60, asked != []) == ("unlearned", True, True)
    assert (kind, step) == ("stuck", note_step + 50)
    verdict = verdicts[step - 41]
    assert verdict.prior == "the prior"
    assert verdict.level == pytest.approx(math.log(2), rel=0.01)


def test_a_loss_that_stays_above_what_knowing_nothing_gives_is_stuck():
    trend, random_ = LossTrend(), random.Random(0)
    trend.reference_levels = lambda: {"the prior": 4.09, "uniform": 4.16}
    _, verdicts = see_all([4.16, *(random_.uniform(4.15, 4.6) for _ in range(150))], trend)
    assert told(verdicts)[-1][0] == "stuck"
    assert (verdicts[-1].prior, verdicts[-1].prior_value) == ("the prior", 4.09)


def test_weights_undone_by_the_first_steps_are_told_within_50():
    for seed in SEEDS:
        random_ = random.Random(seed)
        curve = [3.09, 3.9, 4.6, 4.8, *(4.15 for _ in range(100))]
        ((kind, step),) = told(see_all([loss * math.exp(random_.gauss(0, 0.03)) for loss in curve])[1])
        assert (kind, step <= 50) == ("rising", True), (seed, step)


def test_an_easy_first_batch_is_no_wreck():
    for seed in SEEDS:
        random_ = random.Random(seed)
        losses = [3.0 * math.exp(random_.gauss(0, 0.15)) for _ in range(200)]
        assert told(see_all([2.2, *losses])[1]) == [], seed


def test_a_slow_begin_is_noted_and_no_alarm():
    trend, random_ = LossTrend(), random.Random(0)
    trend.reference_levels = lambda: {"the prior": math.log(3)}
    level = [1.1] * 80 + [1.1 - 0.005 * step for step in range(100)]
    _, verdicts = see_all([each * math.exp(random_.gauss(0, 0.05)) for each in level], trend)
    assert [kind for kind, _ in told(verdicts)] == ["unlearned"]


def test_a_loss_that_passes_the_level_of_the_prior_is_not_stuck():
    for seed in SEEDS:
        trend = LossTrend()
        trend.reference_levels = lambda: {"the prior": math.log(2)}
        losses = falling(0.05, random.Random(seed), start=0.75, end=0.4, over=150)
        assert told(see_all(losses, trend)[1]) == [], seed


@settings(deadline=None)
@given(st.lists(LOSSES, max_size=120), st.lists(st.tuples(st.integers(0, 120), BAD), max_size=8))
def test_t6_bad_values_are_counted_once_and_change_no_other_verdict(losses, bad):
    mixed = list(losses)
    for place, value in bad:
        mixed.insert(place, value)
    clean, clean_verdicts = see_all(losses)
    dirty, dirty_verdicts = see_all(mixed)
    assert dirty.counts["not_finite"] == len(bad)
    assert list(dirty.recent) == list(clean.recent)
    assert [v.kind for v in dirty_verdicts if v.kind != "not_finite"] == [v.kind for v in clean_verdicts]
    assert len(told(dirty_verdicts)) == len(told(clean_verdicts))


@settings(deadline=None)
@given(st.lists(st.one_of(LOSSES, BAD), max_size=60))
def test_t6_a_stale_value_is_not_counted_again(losses):
    once, _ = see_all(losses)
    twice = LossTrend()
    for step, loss in enumerate(losses, 1):
        assert twice.see(step, loss).kind != "stale"
        assert twice.see(step, loss).kind == "stale"
    assert twice.state_dict() == once.state_dict()


@settings(deadline=None)
@given(st.lists(LOSSES, max_size=150), st.integers(1, 6))
def test_scaling_all_losses_changes_no_verdict(losses, exponent):
    """From a first level of 1.7 nats on, where the softness is a share of it and no longer the least one."""
    losses = [4.0, 4.1, 4.2, 4.3, *losses]
    _, verdicts = see_all(losses)
    _, scaled = see_all([loss * 2.0**exponent for loss in losses])
    warm = [(v.kind, w.kind) for v, w in zip(verdicts, scaled, strict=True)][16:]
    assert [kind for kind, _ in warm] == [kind for _, kind in warm]


@settings(deadline=None)
@given(st.lists(st.one_of(LOSSES, LOSSES, BAD, st.just(1.5)), max_size=150), st.integers(0, 150))
def test_state_survives_json_at_any_point(losses, cut):
    whole, verdicts = see_all(losses)
    first, before = see_all(losses[:cut])
    resumed = LossTrend()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    _, after = see_all(losses[cut:], resumed, start=min(cut, len(losses)) + 1)
    assert [(v.kind, v.first, v.level) for v in before + after] == [(v.kind, v.first, v.level) for v in verdicts]
    assert resumed.state_dict() == whole.state_dict()


@settings(deadline=None)
@given(st.lists(LOSSES, min_size=1, max_size=150))
def test_every_finite_loss_gets_one_verdict(losses):
    trend, verdicts = see_all(losses)
    assert trend.counts.total() == len(verdicts) == len(losses)
    assert all(verdict.kind in TOLD | {"healthy", "warming_up"} for verdict in verdicts)


def test_a_spike_is_told_once_for_a_series_and_learned_after_sixteen():
    trend, _ = see_all([1.0 + 0.01 * (step % 7) for step in range(64)])
    _, verdicts = see_all([9.0 + 0.01 * step for step in range(40)], trend, start=65)
    assert [(v.kind, v.first) for v in verdicts[:2]] == [("spike", True), ("spike", False)]
    assert [kind for kind, _ in told(verdicts)] == ["spike", "rising"]
    assert "spike" not in {v.kind for v in verdicts[16:]}
