from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.judges.custom import load_score


def loaded(tmp_path, body, name="score"):
    file = tmp_path / "mine.py"
    file.write_text(f"def score(answer, reference, row):\n    {body}\n")
    return load_score(f"{file}:{name}")


def test_it_gets_answer_reference_and_row_and_its_code_is_told(tmp_path, caplog):
    with caplog.at_level("INFO"):
        score = loaded(tmp_path, "return {'same': answer == reference, 'length': len(row['messages'])}")
    assert "whose code runs here because the recipe names it" in caplog.text
    assert score("a", "a", {"messages": [1, 2]}) == {"same": 1.0, "length": 2.0}


def test_one_number_gets_the_name_of_the_function(tmp_path):
    assert loaded(tmp_path, "return 0.5")("a", "b", {}) == {"score": 0.5}


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("return row['absent']", r"mine.py:score on row 7 failed at line 2 with KeyError: 'absent'"),
        ("return None", "returned 'score': None, not a finite number"),
        ("return float('nan')", "not a finite number"),
        ("return {'a': '1'}", "returned 'a': '1', not a finite number"),
        ("return {1: 1}", "not a finite number under a name"),
        ("return {}", "returned no score"),
    ],
)
def test_what_goes_wrong_names_the_row(tmp_path, body, sentence):
    score = loaded(tmp_path, body)
    with pytest.raises(UserError, match=sentence):
        score("a", "b", {"number": 7})


@pytest.mark.parametrize(
    ("body", "name", "sentence"),
    [
        ("return 1", "scores", "has no function 'scores' .did you mean 'score'.*it has score"),
        ("return (", "score", "cannot be loaded at line 2: SyntaxError"),
        ("return 1\nraise OSError('no')", "score", "cannot be loaded at line 3: OSError: no"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, body, name, sentence):
    with pytest.raises(UserError, match=sentence):
        loaded(tmp_path, body, name)


@pytest.mark.parametrize("spec", ["score", "file.py:", ":score", "file.py:not a name", "absent.py:score"])
def test_a_spec_of_another_form(spec):
    with pytest.raises(UserError):
        load_score(spec)


def test_two_files_of_one_name_are_two_modules(tmp_path):
    scores = []
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        scores.append(loaded(tmp_path / str(number), f"return {number}"))
    assert [score("", "", {}) for score in scores] == [{"score": 1.0}, {"score": 2.0}]
