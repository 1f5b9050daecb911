"""What is said of a schedule before the run, and of a rate while it runs."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.schedule_shape import RateTrack, end_is_usual, fault_of, shape_of, warm_up_is_usual


def cosine(steps, warm_up, end=0.1):
    def multiple(step):
        if step < warm_up:
            return step / warm_up
        progress = (step - warm_up) / max(1, steps - warm_up)
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))

    return multiple


def test_the_guides_schedule_is_as_it_should_be():
    shape = shape_of(cosine(1000, 30), 1000)
    assert (shape.peak, shape.warm_up_steps, shape.warm_up_share) == (1.0, 30, 0.03)
    assert shape.end == pytest.approx(0.1)
    assert (shape.falls_only, shape.constant, shape.rises_to_the_end, shape.zero_from) == (True, False, False, None)
    assert fault_of(shape, 1000) is None
    assert warm_up_is_usual(shape) and end_is_usual(shape)


@settings(deadline=None)
@given(st.integers(1, 100_000), st.floats(0.03, 0.05))
def test_a_share_of_the_run_is_usual_at_every_length(steps, share):
    """As the Trainer counts it: the share of the steps, rounded up."""
    warm_up = math.ceil(share * steps)
    shape = shape_of(cosine(steps, warm_up), steps)
    assert shape.peak <= 1
    if steps > 1:  # one step of warm-up is the whole run, at a rate of 0
        assert fault_of(shape, steps) is None
    assert warm_up_is_usual(shape)


def test_of_a_long_run_few_points_are_looked_at_and_the_warm_up_is_exact():
    seen = []
    shape = shape_of(lambda step: seen.append(step) or cosine(10**6, 30_123)(step), 10**6)
    assert len(seen) <= 2502
    assert shape.warm_up_steps == 30_123


@pytest.mark.parametrize(
    ("multiple", "length", "fault"),
    [
        (cosine(100, 3), None, None),
        (cosine(100, 3, end=0.0), 100, None),
        (lambda step: 1.0, None, None),
        (lambda step: 1 / (1 + step), None, None),
        (lambda step: 0.5 * (1 + math.cos(math.pi * (step % 25) / 25)), 100, None),
        (lambda step: 0.0, None, "zero"),
        (cosine(1000, 100), None, "peak_not_reached"),  # the first update after the run would be at the peak
        (cosine(1000, 300), 1000, "peak_not_reached"),
        (cosine(50, 3, end=0.0), None, "ends_early"),
        (cosine(50, 3, end=0.1), 50, "ends_early"),
        (cosine(1000, 30), 1000, "cut_off"),
        (cosine(100, 3), 104, None),
    ],
)
def test_faults_of_a_run_of_a_hundred_steps(multiple, length, fault):
    assert fault_of(shape_of(multiple, 100), length) == fault


@pytest.mark.parametrize(("steps", "warm_up"), [(1, 1), (1, 0)])
def test_a_run_of_one_step_trains_only_without_warm_up(steps, warm_up):
    assert fault_of(shape_of(cosine(steps, warm_up), steps), steps) == ("zero" if warm_up else None)


@pytest.mark.parametrize(
    ("steps", "warm_up", "usual"),
    [(1000, 0, False), (1000, 30, True), (1000, 50, True), (1000, 51, False), (1000, 29, False), (30, 0, True)],
)
def test_three_to_five_percent_are_usual(steps, warm_up, usual):
    assert warm_up_is_usual(shape_of(cosine(steps, warm_up), steps)) is usual


@settings(deadline=None)
@given(st.integers(2, 500), st.integers(0, 100), st.floats(0, 1), st.floats(1e-6, 1e3))
def test_scaling_the_multiples_changes_nothing_but_the_peak(steps, warm_up, end, scale):
    plain = shape_of(cosine(steps, warm_up, end), steps)
    scaled = shape_of(lambda step: scale * cosine(steps, warm_up, end)(step), steps)
    assert fault_of(scaled, None) == fault_of(plain, None)
    assert scaled.end == pytest.approx(plain.end)
    assert scaled.warm_up_steps == plain.warm_up_steps


def follow(rates, planned=None, **options):
    track = RateTrack()
    pairs = zip(rates, planned or [None] * len(rates), strict=True)
    return track, [track.see(step, rate, plan, **options) for step, (rate, plan) in enumerate(pairs, 1)]


PLAN = [cosine(100, 5)(step) for step in range(100)]


def test_a_rate_on_its_plan_is_fine_and_one_below_it_too():
    assert {verdict.kind for verdict in follow(PLAN, PLAN)[1]} == {"fine"}
    lowered = PLAN[:40] + [rate / 2 for rate in PLAN[40:]]
    assert {verdict.kind for verdict in follow(lowered, PLAN)[1]} == {"fine"}


def test_a_rate_above_its_plan_is_told_once_at_its_step():
    _, verdicts = follow(PLAN[:40] + PLAN[5:65], PLAN)
    assert [verdict.step for verdict in verdicts if verdict.first] == [41]
    assert (verdicts[40].kind, verdicts[41].kind) == ("off_plan", "off_plan")


def test_planned_restarts_are_fine():
    restarts = PLAN[5:50] * 2
    assert {verdict.kind for verdict in follow(restarts, restarts)[1]} == {"fine"}
    assert {verdict.kind for verdict in follow(restarts, may_jump=True)[1]} == {"fine"}


def test_without_a_plan_a_jump_back_to_the_peak_is_told_and_the_warm_up_is_not():
    _, verdicts = follow([0.001, 0.1, 0.5, 1.0, 0.8, 0.4, 0.3, 1.0, 0.9])
    assert [(verdict.kind, verdict.step) for verdict in verdicts if verdict.first] == [("jump", 8)]


def test_t6_a_stale_step_is_not_counted_again():
    track, _ = follow(PLAN)
    before = track.state_dict()
    assert track.see(100, 5.0, None).kind == "stale"
    assert track.state_dict() == before


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), max_size=60), st.integers(0, 60), st.booleans())
def test_state_survives_json_at_any_point(rates, cut, has_plan):
    planned = [0.5 if has_plan else None] * len(rates)
    whole, verdicts = follow(rates, planned)
    first, before = follow(rates[:cut], planned[:cut])
    resumed = RateTrack()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    after = [resumed.see(step, rates[step - 1], planned[step - 1]) for step in range(cut + 1, len(rates) + 1)]
    assert before + after == verdicts
    assert resumed.state_dict() == whole.state_dict()
