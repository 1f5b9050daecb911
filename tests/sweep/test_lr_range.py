"""The learning-rate range test: its rates, when it stops, what it suggests."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.sweep.range_test import has_exploded, rate_at, read_range, smooth, suggest

LOW, HIGH, STEPS = 1e-6, 1.0, 120
RATES = [rate_at(step, STEPS, LOW, HIGH) for step in range(STEPS)]


def valley(lowest=1e-2, noise=0.0, seed=0):
    """Losses that fall from 2 to 1 around a tenth of `lowest`, and rise beyond it."""
    generator = random.Random(seed)
    losses = []
    for rate in RATES:
        place = math.log10(rate / lowest)
        fall = 1 / (1 + math.exp(4 * (place + 1)))
        losses.append(1 + fall + (0.8 * place**2 if place > 0 else 0.0) + generator.gauss(0, noise))
    return losses


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 500), st.floats(1e-9, 1e-3), st.floats(1.1, 1e6))
def test_rates_rise_from_end_to_end_in_equal_factors(steps, low, ratio):
    rates = [rate_at(step, steps, low, low * ratio) for step in range(steps)]
    assert rates[0] == low and rates[-1] == pytest.approx(low * ratio)
    factors = [after / before for before, after in itertools.pairwise(rates)]
    assert max(factors) == pytest.approx(min(factors), rel=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.floats(1e-4, 1e-1))
def test_a_tenth_of_the_valley_is_suggested(lowest):
    found = suggest(RATES, valley(lowest))
    # A step of the test is a factor of 10^(6/119) = 1.12; the smoothing moves a lopsided valley by two or three.
    assert found.learning_rate == pytest.approx(lowest / 10, rel=0.5)
    assert found.steepest < found.lowest
    compared = found.to_compare
    assert {found.learning_rate, float(f"{found.lowest:.2g}")} <= set(compared)
    assert all(later > 1.4 * earlier for earlier, later in itertools.pairwise(compared))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 30))
def test_noise_moves_it_by_less_than_a_factor_of_three(seed):
    found = suggest(RATES, valley(1e-2, noise=0.05, seed=seed))
    assert 1 / 3 < found.learning_rate / 1e-3 < 3


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 30))
def test_noise_alone_suggests_nothing(seed):
    generator = random.Random(seed)
    found = suggest(RATES, [2 + generator.gauss(0, 0.2) - (index == 119) * 1e-9 for index in range(STEPS)])
    # The lowest of 120 smoothed values of noise lies some standard errors below the first: such a fall is small.
    assert found.learning_rate is None or "lowest (1." in found.reason or "lowest (2." in found.reason


def test_a_flat_loss_suggests_nothing():
    found = suggest(RATES, [2.0] * STEPS)
    assert found.learning_rate is None and "did not fall" in found.reason
    assert found.to_compare == ()


def test_losses_after_a_bad_one_do_not_count():
    losses = valley(1e-2)
    assert suggest(RATES, [*losses[:100], math.nan, *([0.0] * 19)]) == suggest(RATES[:100], losses[:100])


def test_a_loss_that_explodes_at_once_is_told():
    found = suggest(RATES[:3], [2.0, 50.0, math.inf])
    assert found.learning_rate is None and "begin at a lower rate" in found.reason


def test_a_loss_that_still_falls_at_the_end_says_so():
    assert "higher end would tell more" in suggest(RATES, [2 - index / STEPS for index in range(STEPS)]).reason


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=80))
def test_smoothing_stays_within_the_losses(losses):
    assert all(min(losses) - 1e-9 <= value <= max(losses) + 1e-9 for value in smooth(losses))


def test_what_explodes_stops_and_what_falls_does_not():
    assert has_exploded([2.0, math.inf])
    assert not has_exploded(valley()[:90])
    assert has_exploded([2.0] * 20 + [9.0] * 10)
    assert not has_exploded([])


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 200))
def test_the_noise_of_small_batches_is_no_explosion(seed):
    # Losses of two rows of SmolLM2 before anything is learned: 1.3 ± 0.3.
    generator = random.Random(seed)
    losses = [1.3 + generator.gauss(0, 0.3) for _ in range(60)]
    assert not any(has_exploded(losses[:count]) for count in range(1, 61))


@pytest.mark.parametrize("text", ["1e-7", "1..0", "0..1", "a..b", "1e-7..1000", "-1..1", "nan..1", ""])
def test_a_range_that_is_none_is_one_sentence(text):
    with pytest.raises(UserError, match="is no range of learning rates"):
        read_range(text)
