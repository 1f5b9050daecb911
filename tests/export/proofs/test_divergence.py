"""Distances of logits against values worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from hf_recipes.export.proofs.answers import rows_that_fit
from hf_recipes.export.proofs.divergence import distance, first_difference, losses, update_share


def rows(*positions):
    return [torch.tensor(positions)]


def test_kl_is_that_of_two_coins():
    # p = (¾, ¼), q = (½, ½): KL = ¾·ln(3/2) + ¼·ln(1/2); a constant on all logits changes nothing.
    p, q = rows([math.log(3.0) + 7, 7.0], [0.0, 0.0]), rows([0.0, 0.0], [0.0, 0.0])
    found = distance(p, q)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert found.kl_max == pytest.approx(expected, rel=1e-6)
    assert found.kl_mean == pytest.approx(expected / 2, rel=1e-6)
    assert found.positions == 2
    assert found.max_abs_difference == pytest.approx(math.log(3) + 7)
    assert found.top1_agreement == 1.0  # of equal logits the first counts
    assert found.rms_difference == pytest.approx(math.log(3) / 2 / math.sqrt(2), rel=1e-5)


def test_nan_is_not_lost():
    found = distance(rows([0.0, 1.0], [0.0, 1.0]), rows([0.0, float("nan")], [0.0, 1.0]))
    assert math.isnan(found.kl_mean) and math.isnan(found.max_abs_difference)


@pytest.mark.parametrize("share", [1.0, 0.98, 0.0, -1.0])
def test_update_share_is_the_factor_on_the_update(share):
    generator = torch.Generator().manual_seed(0)
    base, effect = torch.randn(2, 50, 300, generator=generator)
    across = torch.randn(50, 300, generator=generator)
    merged = base + share * effect + 0.01 * across + 5.0
    assert update_share([base], [base + effect], [merged]) == pytest.approx(share, abs=1e-3)


def test_without_effect_there_is_no_share():
    same = rows([0.0, 1.0])
    assert math.isnan(update_share(same, same, rows([1.0, 0.0])))


def test_answers_part_at_the_first_other_choice():
    # Prompt of two tokens; choices at positions 1, 2, 3 are for the answer's tokens.
    one = torch.tensor([[9.0, 0.0], [0.0, 1.0], [3.0, 1.0], [0.0, 1.0], [5.0, 0.0]])
    other = torch.tensor([[0.0, 9.0], [0.0, 1.0], [1.0, 3.0], [1.0, 0.0], [0.0, 5.0]])
    assert first_difference(one, other, 2) == (1, 2.0)
    assert first_difference(one, one, 2) is None


def test_loss_is_of_the_next_token():
    logits = torch.tensor([[0.0, math.log(3.0)], [5.0, 5.0]])
    assert losses(logits, [0, 1]).tolist() == pytest.approx([-math.log(0.75)])


def test_short_rows_stay_whole():
    assert rows_that_fit([60, 10, 40, 20], 90) == {0: 60, 1: 10, 3: 20}
    assert rows_that_fit([100], 90) == {0: 90}
    assert rows_that_fit([100], 1) == rows_that_fit([], 100) == rows_that_fit([1, 0], 50) == {}


def test_the_loss_is_that_of_what_was_learned():
    """Two words: the logits are (0, ln 3) everywhere, so word 1 costs ln 4/3 and word 0 ln 4."""
    z = torch.tensor([[0.0, math.log(3)]]).repeat(4, 1)
    row = [0, 1, 0, 1]
    expected = [math.log(4 / 3), math.log(4), math.log(4 / 3)]
    torch.testing.assert_close(losses(z, row), torch.tensor(expected, dtype=torch.float64), rtol=1e-6, atol=0)
    learned = losses(z, row, [-100, -100, 0, 1])
    torch.testing.assert_close(learned, torch.tensor(expected[1:], dtype=torch.float64), rtol=1e-6, atol=0)
