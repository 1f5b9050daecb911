"""Which answers keep their form."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.callbacks.answer_format import judge_answer, repeated_end

ORDER = json.dumps({"item": "tea", "count": 2})


@pytest.mark.parametrize(
    ("answer", "reference", "ok", "why"),
    [
        ('{"count": 1, "item": "milk"}', ORDER, True, ""),
        ('{"item": "milk"}', ORDER, False, "without count"),
        ('{"item": "milk", "count": 1, "note": ""}', ORDER, False, "with note too many"),
        ("[1]", ORDER, False, "not a JSON object"),
        ("Two teas, please.", ORDER, False, "not JSON"),
        ("[3]", "[1, 2]", True, ""),
        ("Two teas.", "Two cups of tea.", None, ""),
        ("Two teas.", None, None, ""),
        ("2", "2", None, ""),  # a bare number is text as well
        (" \n", None, False, "empty"),
        ("so it is and so it is and so it is and so it is and so it is and", None, False, "repeats"),
    ],
)
def test_the_reference_says_what_form_is_wanted(answer, reference, ok, why):
    judged, reason = judge_answer(answer, reference)
    assert judged is ok
    assert why in reason


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.integers(5, 9))
def test_a_loop_at_the_end_is_found(words, times):
    assert repeated_end(" ".join(["once", *words * times]))


@given(st.lists(st.integers(), unique=True, max_size=60))
def test_words_that_differ_are_no_loop(words):
    assert repeated_end(" ".join(map(str, words))) == ""
