"""The entropy floor, as properties and by hand."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.training.overfit.floor import contradicted_share, entropy_floor, last_answer, loss_bound

FEW = settings(max_examples=30, deadline=None)

IGNORED = -100


def row(prompt, answer):
    return {"input_ids": [*prompt, *answer], "labels": [IGNORED] * len(prompt) + list(answer)}


# Three tokens and rows of up to six make prefixes that meet again and again.
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=6)
rows_of_few_tokens = st.lists(st.builds(row, tokens, tokens), min_size=1, max_size=12)


def test_two_answers_to_one_prompt_leave_one_bit():
    # 2 rows, each 2 trained tokens: the first is 5 or 6 at even odds (ln 2 nats), the second is certain given it.
    rows = [row([1, 2], [5, 7]), row([1, 2], [6, 7])]
    assert entropy_floor(rows) == pytest.approx(math.log(2) / 2)
    assert contradicted_share(rows) == 1.0


def test_frequencies_count():
    # One token each; 3 of 4 say 5: H(1/4) = 1/4 ln 4 + 3/4 ln (4/3) = 0.5623 nats.
    rows = [row([1], [5])] * 3 + [row([1], [6])]
    assert entropy_floor(rows) == pytest.approx(0.5623, abs=1e-4)


def test_plain_text_is_free_but_for_where_it_begins_alike():
    # No prompt: the first token has no prefix and is not predicted; then 8 or 9 follow the same [1, 4].
    rows = [{"input_ids": [1, 4, end, 3], "labels": [1, 4, end, 3]} for end in (8, 9)]
    assert entropy_floor(rows) == pytest.approx(math.log(2) / 3)


def test_nothing_supervised_is_zero():
    assert entropy_floor([row([1, 2, 3], [])]) == 0.0
    assert entropy_floor([]) == 0.0


@FEW
@given(rows_of_few_tokens, st.integers(0, 2**32))
def test_no_predictor_of_prefixes_does_better(rows, seed):
    draw = random.Random(seed)
    guesses, total, count = {}, 0.0, 0
    for each in rows:
        for place, label in enumerate(each["labels"]):
            if place and label != IGNORED:
                weights = guesses.setdefault(tuple(each["input_ids"][:place]), [draw.random() + 1e-3 for _ in range(3)])
                total -= math.log(weights[label] / sum(weights))
                count += 1
    assert total / count >= entropy_floor(rows) - 1e-9


@FEW
@given(rows_of_few_tokens)
def test_the_frequencies_themselves_reach_it(rows):
    counts = {}
    for each in rows:
        for place, label in enumerate(each["labels"]):
            if place and label != IGNORED:
                counts.setdefault(tuple(each["input_ids"][:place]), []).append(label)
    losses = [-math.log(given.count(label) / len(given)) for given in counts.values() for label in given]
    assert sum(losses) / len(losses) == pytest.approx(entropy_floor(rows), abs=1e-9)


@FEW
@given(rows_of_few_tokens, st.integers(2, 4))
def test_copies_of_all_rows_change_nothing(rows, times):
    assert entropy_floor(rows * times) == pytest.approx(entropy_floor(rows), abs=1e-9)


@FEW
@given(rows_of_few_tokens)
def test_prompts_of_their_own_make_it_zero(rows):
    told_apart = [row([10 + index], each["input_ids"]) for index, each in enumerate(rows)]
    assert entropy_floor(told_apart) == 0.0
    assert contradicted_share(told_apart) == 0.0


@FEW
@given(st.floats(0, 20), st.floats(0, 5))
def test_the_bound_lies_above_the_floor_and_below_a_start_that_has_far_to_go(way, floor):
    bound = loss_bound(floor + way, floor)
    assert bound >= floor + 0.1 - 1e-12
    if way > 0.2:
        assert bound < floor + way


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ([IGNORED, IGNORED, 5, 6], (2, 4)),
        ([IGNORED, 5, IGNORED, 6, IGNORED], (3, 4)),  # the last of two answers, padding behind it
        ([5, 6, 7], None),  # plain text has no prompt
        ([IGNORED, IGNORED], None),
    ],
)
def test_the_last_answer(labels, found):
    assert last_answer(labels) == found
