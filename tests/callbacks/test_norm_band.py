"""The band of gradient norms, as properties."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.norm_band import NormBand

NORMS = st.floats(1e-6, 1e6)
BAD = st.sampled_from([math.nan, math.inf, -math.inf, 0.0])
ALARMS = {"exploding", "vanishing", "shifted"}


def judge_all(norms, **thresholds):
    band = NormBand(**thresholds)
    return band, [band.judge(norm) for norm in norms]


@settings(deadline=None)
@given(NORMS, st.integers(1, 300))
def test_constant_norms_never_leave_the_band_but_are_stuck_from_the_fifth_on(norm, count):
    _, verdicts = judge_all([norm] * count)
    assert {verdict.kind for verdict in verdicts[:4]} == {"warming_up"}
    assert {verdict.kind for verdict in verdicts[4:]} <= {"stuck"}
    assert [verdict.first for verdict in verdicts[4:6]] == [True, False][: max(count - 4, 0)]


def test_norms_that_repeat_but_not_in_a_row_are_not_stuck():
    _, verdicts = judge_all([1.0, 1.0, 1.0, 1.0, 1.5] * 20)
    assert "stuck" not in {verdict.kind for verdict in verdicts}


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(0.01, 0.8))
def test_steady_noise_never_alarms(seed, level, spread):
    """Norms spread like a log-normal: 8 robust sigmas are never met in a run of 400 steps."""
    source = random.Random(seed)
    _, verdicts = judge_all([level * math.exp(source.gauss(0, spread)) for _ in range(400)])
    assert not {verdict.kind for verdict in verdicts} & {*ALARMS, "stuck"}


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 0.1))
def test_a_slow_drift_is_found_within_50_steps(seed, spread):
    """Seven per cent a step are a factor of 29 in 50 steps."""
    source = random.Random(seed)
    norms = [math.exp(source.gauss(0, spread)) * 1.07 ** max(0, step - 60) for step in range(110)]
    _, verdicts = judge_all(norms)
    assert "exploding" in {verdict.kind for verdict in verdicts[60:]}


@settings(deadline=None)
@given(st.lists(NORMS, max_size=60), st.lists(st.tuples(st.integers(0, 60), BAD), max_size=10))
def test_t6_bad_values_neither_enter_nor_blind_the_window(norms, bad):
    mixed = list(norms)
    for place, value in bad:
        mixed.insert(place, value)
    clean, clean_verdicts = judge_all(norms)
    dirty, dirty_verdicts = judge_all(mixed)
    assert list(dirty.values) == list(clean.values)
    judged = [(v.kind, v.norm) for v in dirty_verdicts if math.isfinite(v.norm) and v.norm != 0]
    assert judged == [(v.kind, v.norm) for v in clean_verdicts]


@settings(deadline=None)
@given(st.lists(st.one_of(NORMS, BAD), max_size=80))
def test_each_value_is_counted_once(norms):
    band, verdicts = judge_all(norms)
    assert sum(band.counts.values()) == len(norms)
    assert band.counts["not_finite"] == sum(not math.isfinite(norm) for norm in norms)
    assert len(band.values) + len(band.outside) <= len(norms)
    assert all(math.isfinite(value) for value in band.values)
    assert len(verdicts) == len(norms)


@settings(deadline=None)
@given(st.lists(NORMS, max_size=80), st.integers(-20, 20))
def test_scaling_all_norms_changes_no_verdict(norms, exponent):
    _, verdicts = judge_all(norms)
    _, scaled = judge_all([norm * 2.0**exponent for norm in norms])
    assert [v.kind for v in scaled] == [v.kind for v in verdicts]


@settings(deadline=None)
@given(st.lists(st.one_of(NORMS, BAD), max_size=80), st.integers(0, 80))
def test_state_survives_json_at_any_point(norms, cut):
    band, verdicts = judge_all(norms)
    first, before = judge_all(norms[:cut])
    resumed = NormBand()
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
    after = [resumed.judge(norm) for norm in norms[cut:]]
    assert [v.kind for v in before + after] == [v.kind for v in verdicts]
    assert [v.first for v in before + after] == [v.first for v in verdicts]
    assert resumed.state_dict() == band.state_dict()


@pytest.mark.parametrize(("norm", "kind"), [(50.0, "exploding"), (0.02, "vanishing"), (0.0, "vanishing")])
def test_a_value_out_of_the_band_is_named_once_and_kept_out(norm, kind):
    band, _ = judge_all([1.0, 1.1, 0.9, 1.05] * 8)
    before = list(band.values)
    first, second = band.judge(norm), band.judge(norm)
    assert (first.kind, first.first, second.kind, second.first) == (kind, True, kind, False)
    assert list(band.values) == before
    assert first.low < 0.9 < 1.1 < first.high
    assert band.judge(1.0).kind == "healthy"


def test_t6_a_spike_is_seen_right_after_a_nan():
    band, _ = judge_all([1.0] * 32)
    assert band.judge(math.nan).kind == "not_finite"
    assert band.judge(50.0).kind == "exploding"


def test_a_new_level_is_learned_after_warmup_values():
    band, _ = judge_all([1.0] * 32)
    kinds = [band.judge(10.0 + step / 100).kind for step in range(17)]
    assert kinds == ["exploding"] * 15 + ["shifted", "healthy"]


def test_values_on_both_sides_are_no_new_level():
    band, _ = judge_all([1.0] * 32)
    kinds = {band.judge(norm).kind for norm in [10.0, 0.1] * 40}
    assert kinds == {"exploding", "vanishing"}


def test_band_is_median_and_mad_of_logs():
    band, _ = judge_all([1.0, 2.0, 4.0, 8.0, 16.0] * 4, sigma=2.0)
    low, median, high = band.band()
    # log2 of the values: 0..4, median 2, absolute deviations 2,1,0,1,2 with median 1: 2 sigma × 1.4826 × 1 octave.
    assert median == pytest.approx(4.0)
    assert high / median == pytest.approx(2.0 ** (2 * 1.4826), rel=1e-6)
    assert median / low == pytest.approx(2.0 ** (2 * 1.4826), rel=1e-6)
