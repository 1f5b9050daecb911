from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.judges.choices import judge_choice, read_choices

TURNS = [{"role": "user", "content": "Which?"}]


def test_short_choices_win_by_likelihood_and_lose_by_byte():
    # −4 over 2 bytes is −2 a byte; −6 over 12 bytes is −0.5
    assert judge_choice([-4.0, -6.0], [2, 12], answer_index=1) == {"accuracy": 0.0, "accuracy_norm": 1.0}
    assert judge_choice([-4.0, -6.0], [2, 12], answer_index=0) == {"accuracy": 1.0, "accuracy_norm": 0.0}


def test_of_equals_the_first_counts_and_nan_never():
    assert judge_choice([-1.0, -1.0], [1, 1], 0)["accuracy"] == 1
    assert judge_choice([math.nan, -9.0], [1, 1], 1) == {"accuracy": 1.0, "accuracy_norm": 1.0}


@settings(deadline=None)
@given(st.lists(st.floats(-100, 0), min_size=2, max_size=6), st.data())
def test_exactly_one_choice_is_right(likelihoods, data):
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=len(likelihoods), max_size=len(likelihoods)))
    judged = [judge_choice(likelihoods, lengths, index) for index in range(len(likelihoods))]
    assert sum(each["accuracy"] for each in judged) == 1
    assert sum(each["accuracy_norm"] for each in judged) == 1


def written(tmp_path, *rows):
    file = tmp_path / "choices.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


@pytest.mark.parametrize(("answer", "index"), [(1, 1), ("B", 1), (" b", 1), ("no", 1), ("yes", 0), (0, 0)])
def test_an_answer_is_an_index_a_letter_or_the_text(tmp_path, answer, index):
    (row,) = read_choices(written(tmp_path, {"messages": TURNS, "choices": ["yes", "no"], "answer": answer}))
    assert row.answer_index == index


def test_a_choice_that_is_a_letter_is_taken_as_text(tmp_path):
    (row,) = read_choices(written(tmp_path, {"prompt": "Blood group:", "choices": ["B", "A"], "answer": "A"}))
    assert (row.answer_index, row.prompt, row.messages, row.number) == (1, "Blood group:", None, 1)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"choices": ["yes"]}, "at least two texts"),
        ({"choices": ["yes", "yes"]}, "same choice twice"),
        ({"choices": ["yes", ""]}, "an empty choice"),
        ({"answer": 2}, "answer 2 is no choice"),
        ({"answer": -1}, "answer -1 is no choice"),
        ({"answer": True}, "answer true is no choice"),
        ({"answer": "C"}, 'answer "C" is no choice'),
        ({"prompt": "x"}, "either 'messages' or 'prompt'"),
        ({"messages": None}, "either 'messages' or 'prompt'"),
        ({"messages": []}, "is not a list of turns"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\] needs a role and a content"),
        ({"messages": [*TURNS, {"role": "assistant", "content": "yes"}]}, "ends with an assistant turn"),
    ],
)
def test_damaged_rows_are_named_with_file_and_line(tmp_path, changed, sentence):
    good = {"messages": TURNS, "choices": ["yes", "no"], "answer": 0}
    with pytest.raises(UserError, match=f"choices.jsonl, line 2.*{sentence}"):
        read_choices(written(tmp_path, good, {**good, **changed}))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "holds no rows"),
        (b"{", "line 1 is not valid JSON"),
        (b"[1]", "line 1 is not an object"),
        (b"\xff", "UTF-8"),
    ],
)
def test_damaged_files_are_named(tmp_path, content, sentence):
    file = tmp_path / "choices.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        read_choices(file)
    with pytest.raises(UserError, match="cannot be read"):
        read_choices(tmp_path / "absent.jsonl")
