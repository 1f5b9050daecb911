from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.evaluation.bootstrap import figure, paired_difference, ratio
from hf_recipes.evaluation.corpus_bleu import bleu_counts, bleu_of_sums

SHARES = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=30)


def rows_of(values, weights=None) -> np.ndarray:
    return np.column_stack([values, np.ones(len(values)) if weights is None else weights]).astype(float)


def test_the_interval_holds_the_true_difference_about_19_times_in_20():
    """Pairs that share most of their noise, with a true difference of 0.1: of 200 intervals 95 % should hold it. 184 is
    three standard deviations, sqrt(200 * .05 * .95) = 3.1, below 190, and what a percentile interval lacks at 60 rows.
    """
    random = np.random.default_rng(5)
    held = widths = unpaired = 0
    for _ in range(200):
        shared = random.normal(0, 1, 60)
        first, second = shared + random.normal(0, 0.1, 60), shared + 0.1 + random.normal(0, 0.1, 60)
        found = paired_difference(rows_of(first), rows_of(second), resamples=1000)
        held += found.low <= 0.1 <= found.high
        widths += found.high - found.low
        unpaired += 2 * 1.96 * math.sqrt((first.var() + second.var()) / 60)
    assert 180 <= held <= 199
    assert widths < unpaired / 5  # pairing takes the shared noise out: sd 0.14 instead of 1.42


@settings(deadline=None, max_examples=30)
@given(SHARES)
def test_a_model_does_not_differ_from_itself_and_signs_turn_around(pairs):
    first, second = (rows_of(side) for side in zip(*pairs, strict=True))
    same = paired_difference(first, first, resamples=50)
    assert (same.value, same.low, same.high, same.sure) == (0, 0, 0, False)
    forth, back = (paired_difference(*each, resamples=200) for each in ((first, second), (second, first)))
    assert (forth.value, forth.low, forth.high) == pytest.approx((-back.value, -back.high, -back.low))
    assert forth.low - 1e-9 <= forth.value <= forth.high + 1e-9 or len(pairs) < 10
    assert forth.sure == back.sure


@pytest.mark.parametrize(("won", "sure"), [(2, False), (5, False), (6, True)])
def test_a_handful_of_rows_is_never_sure(won, sure):
    """All `won` rows won: the interval is [1, 1] for any number of them, the sign test's p 2/2**won."""
    found = paired_difference(rows_of([0] * won), rows_of([1] * won), resamples=100)
    assert (found.low, found.high, found.sure) == (1, 1, sure)


def test_the_seed_makes_it_repeatable_and_blocks_do_not_show(monkeypatch):
    random = np.random.default_rng(1)
    first, second = rows_of(random.random(40)), rows_of(random.random(40))
    whole = paired_difference(first, second)
    assert whole == paired_difference(first, second)
    assert whole != paired_difference(first, second, seed=1)
    monkeypatch.setattr("hf_recipes.evaluation.bootstrap._DRAWN_AT_ONCE", 400)
    assert paired_difference(first, second).low == pytest.approx(whole.low, abs=1e-12)


def test_a_loss_is_a_ratio_of_sums_and_rows_that_ask_nothing_weigh_nothing():
    # nats and tokens: (2 + 9) / (1 + 3) = 2.75; a mean of row means would be (2 + 3) / 2
    assert figure(np.array([[2.0, 1.0], [9.0, 3.0], [0.0, 0.0]])) == 2.75
    assert math.isnan(ratio(np.zeros(2)))
    nothing = paired_difference(np.zeros((3, 2)), np.zeros((3, 2)), resamples=10)
    assert math.isnan(nothing.low)
    assert not nothing.sure


TEXTS = [
    ("the cat sat on the mat", ["the cat sat on the mat"]),
    ("a dog ran in the park today", ["the dog ran through the park", "a dog ran in a park today"]),
    ("hello", ["good morning to you"]),
    ("", ["nothing was said"]),
    ("one two three", ["one two three four five six"]),
]


@settings(deadline=None, max_examples=40)  # the first example imports
@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=6))
def test_bleu_of_sums_is_sacrebleu_s_of_the_corpus(rows):
    sacrebleu = pytest.importorskip("sacrebleu")
    most = max(len(references) for _, references in rows)
    columns = [[refs[i] if i < len(refs) else None for _, refs in rows] for i in range(most)]
    expected = sacrebleu.BLEU().corpus_score([answer for answer, _ in rows], columns).score / 100
    sums = np.array([bleu_counts(answer, references) for answer, references in rows]).sum(0)
    assert float(bleu_of_sums(sums)) == pytest.approx(expected, abs=1e-9)
    assert bleu_of_sums(np.stack([sums, 0 * sums])).tolist() == pytest.approx([expected, 0.0], abs=1e-9)
