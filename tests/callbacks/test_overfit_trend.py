"""The overfitting trend, as properties."""

from __future__ import annotations

import json
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.overfit_trend import OverfitTrend

LOSSES = st.floats(0.01, 20.0)
PAIRS = st.lists(st.tuples(LOSSES, LOSSES), max_size=30)


def run(pairs, start=1, trend=None, **thresholds):
    trend = trend or OverfitTrend(**thresholds)
    verdicts = []
    for step, (train, evaluation) in enumerate(pairs, start):
        trend.see_train(step, train)
        verdicts.append(trend.see_eval(step, evaluation))
    return trend, verdicts


FALLING = [1.0 - 0.02 * step for step in range(20)]
TURNING = [1.0, 0.9, 0.8, 0.85, 0.9, 0.95, 1.0]


def test_train_falling_and_eval_turning_is_said_once_with_the_best_step():
    _, verdicts = run(zip(FALLING, TURNING, strict=False), patience=3)
    kinds = [verdict.kind for verdict in verdicts]
    assert kinds == ["improved"] * 3 + ["rising", "rising", "overfit", "rising"]
    told = verdicts[5]
    assert (told.best_step, told.best_eval_loss) == (3, 0.8)
    assert told.train_loss < told.train_loss_at_best


def test_eval_rising_while_train_rises_is_divergence_not_overfitting():
    _, verdicts = run(zip(reversed(FALLING), TURNING * 2, strict=False), patience=3)
    assert "overfit" not in {verdict.kind for verdict in verdicts}


def test_rising_from_an_evaluation_before_training_is_seen():
    trend = OverfitTrend(patience=2)
    trend.see_eval(0, 1.0)
    _, verdicts = run([(0.9, 1.1), (0.8, 1.2)], trend=trend)
    assert [verdict.kind for verdict in verdicts] == ["rising", "overfit"]


def test_a_rise_within_min_delta_is_noise():
    _, verdicts = run([(loss, 1.0 + 0.005 * (step % 2)) for step, loss in enumerate(FALLING)], min_delta=0.01)
    assert {verdict.kind for verdict in verdicts} == {"improved", "plateau"}


@settings(deadline=None)
@given(LOSSES, PAIRS)
def test_constant_evaluations_never_alarm(loss, pairs):
    _, verdicts = run([(train, loss) for train, _ in pairs])
    assert {verdict.kind for verdict in verdicts} <= {"improved", "plateau"}


@settings(deadline=None)
@given(PAIRS)
def test_t6_a_stale_value_is_not_counted_again(pairs):
    once, _ = run(pairs)
    twice = OverfitTrend()
    for step, (train, evaluation) in enumerate(pairs, 1):
        for _ in range(2):
            twice.see_train(step, train)
        assert twice.see_eval(step, evaluation).kind != "stale"
        assert twice.see_eval(step, evaluation).kind == "stale"
    assert twice.state_dict() == once.state_dict()


@settings(deadline=None)
@given(PAIRS, st.sets(st.integers(0, 29)))
def test_t6_nan_is_counted_once_and_changes_no_verdict(pairs, places):
    _, clean = run(pairs)
    trend, verdicts, step = OverfitTrend(), [], 0
    for number, (train, evaluation) in enumerate(pairs):
        step += 1
        if number in places:
            assert trend.see_eval(step, math.nan).kind == "not_finite"
            step += 1
        trend.see_train(step, train)
        verdicts.append(trend.see_eval(step, evaluation))
    assert [verdict.kind for verdict in verdicts] == [verdict.kind for verdict in clean]
    assert trend.not_finite == sum(place < len(pairs) for place in places)


@settings(deadline=None)
@given(PAIRS, st.integers(-5, 5))
def test_scaling_losses_and_threshold_changes_no_verdict(pairs, exponent):
    scale = 2.0**exponent
    _, verdicts = run(pairs, min_delta=0.25)
    _, scaled = run([(train * scale, evaluation * scale) for train, evaluation in pairs], min_delta=0.25 * scale)
    assert [verdict.kind for verdict in scaled] == [verdict.kind for verdict in verdicts]


@settings(deadline=None)
@given(PAIRS, st.integers(0, 30))
def test_state_survives_json_at_any_point(pairs, cut):
    whole, verdicts = run(pairs)
    first, before = run(pairs[:cut])
    resumed = OverfitTrend()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    _, after = run(pairs[cut:], start=min(cut, len(pairs)) + 1, trend=resumed)
    assert before + after == verdicts
    assert resumed.state_dict() == whole.state_dict()
