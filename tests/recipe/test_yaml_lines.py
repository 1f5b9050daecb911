from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.yaml_lines import load_yaml, parse_scalar


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("true", True),
        ("1e-3", 1e-3),
        ("2E5", 2e5),
        ("-1", -1),
        ("12", 12),
        ("1.5", 1.5),
        (".5", 0.5),
        ("[q_proj, v_proj]", ["q_proj", "v_proj"]),
        ("null", None),
        ("path: not: yaml", "path: not: yaml"),
        ("2026-01-01x", "2026-01-01x"),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    assert parse_scalar(text) == value
    assert type(parse_scalar(text)) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_float_python_prints_comes_back(number):
    assert parse_scalar(repr(number)) == number


@given(st.integers())
def test_integers_stay_integers(number):
    assert parse_scalar(str(number)) == number
    assert isinstance(parse_scalar(str(number)), int)


def test_lines_of_nested_keys(tmp_path):
    values, lines = load_yaml(write(tmp_path, "# note\nmethod: lora\ndatasets:\n  - path: a\n    role: general\n"))
    assert values == {"method": "lora", "datasets": [{"path": "a", "role": "general"}]}
    assert lines == {"method": 2, "datasets": 3, "datasets.0.path": 4, "datasets.0.role": 5}


def test_a_number_inside_nested_keys_is_a_number(tmp_path):
    values, _ = load_yaml(write(tmp_path, "lr_scheduler_kwargs: {min_lr_rate: 1e-1}\n"))
    assert values == {"lr_scheduler_kwargs": {"min_lr_rate": 0.1}}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: 'a' is given twice (first in line 1)"),
        ("a: [1\nb: 2\n", "line 2: not valid YAML"),
        ("- a\n- b\n", "holds a list"),
        ("a: {b: 1, b: 2}\n", "'a.b' is given twice"),
    ],
)
def test_wrong_yaml_names_the_line(tmp_path, text, sentence):
    with pytest.raises(UserError) as error:
        load_yaml(write(tmp_path, text))
    assert sentence in str(error.value)


def test_an_unreadable_file_is_named(tmp_path):
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"a: \xe9\n")
    with pytest.raises(UserError, match=r"latin\.yaml' is not UTF-8 text"):
        load_yaml(path)


def test_an_empty_recipe_has_no_keys(tmp_path):
    assert load_yaml(write(tmp_path, "# nothing\n")) == ({}, {})


@pytest.mark.parametrize("text", ["a: 2026-13-45\n", "a: 2026-01-01\n"])
def test_dates_stay_text(tmp_path, text):
    assert load_yaml(write(tmp_path, text))[0] == {"a": text[3:].strip()}


@pytest.mark.parametrize(
    ("text", "sentence"), [("a: \x07\n", "special characters are not allowed"), ("a: &x [*x]\n", "refers to the part")]
)
def test_what_the_parser_cannot_even_read_is_one_sentence(tmp_path, text, sentence):
    with pytest.raises(UserError) as error:
        load_yaml(write(tmp_path, text))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("a: 1\n".encode("utf-16"), r"is not UTF-8 text \(byte 0\): save it as UTF-8"),
        (b"base: &b {x: 1}\nwatch:\n  <<: *b\n", r"line 3: merge keys \(<<\) are not read here: write the keys out"),
    ],
)
def test_what_is_no_plain_recipe_is_told_with_the_way_out(content, sentence, tmp_path):
    (tmp_path / "r.yaml").write_bytes(content)
    with pytest.raises(UserError, match=sentence):
        load_yaml(tmp_path / "r.yaml")
