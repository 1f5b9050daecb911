from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.evaluation.scoring import json_equal, judge, parse_json, tally

SCHEMA = jsonschema.Draft202012Validator(
    {
        "type": "object",
        "required": ["customer", "quantity"],
        "properties": {"customer": {"type": ["string", "null"]}, "quantity": {"type": "integer", "minimum": 1}},
        "additionalProperties": False,
    }
)
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON_VALUES, st.sampled_from(["", " ", "\n", "\t\r\n "]))
def test_what_json_writes_parses_and_is_equal(value, space):
    parsed = parse_json(space + json.dumps(value) + space)
    assert json_equal(parsed, value)


@given(JSON_VALUES, st.text(alphabet="abc:`#{", min_size=1))
def test_anything_around_the_json_is_refused(value, rest):
    for text in (json.dumps([value]) + rest, rest + json.dumps([value])):
        with pytest.raises(ValueError):
            parse_json(text)


@pytest.mark.parametrize(
    "text", ["", "NaN", "[Infinity]", '{"a": -Infinity}', "{'a': 1}", "{}{}", "```json\n{}\n```", "[" * 200_000, "[1,]"]
)
def test_what_is_not_json(text):
    with pytest.raises(ValueError):
        parse_json(text)


@given(JSON_VALUES, JSON_VALUES)
def test_equality_is_reflexive_and_symmetric(left, right):
    assert json_equal(left, left)
    assert json_equal(left, right) == json_equal(right, left)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, True),
        (1, True, False),
        (0, False, False),
        ([1, {"a": True}], [1.0, {"a": True}], True),
        ([1, {"a": True}], [1, {"a": 1}], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ("1", 1, False),
        (None, False, False),
    ],
)
def test_equality_of_json_is_not_that_of_python(left, right, equal):
    assert json_equal(left, right) is equal


REFERENCE = '{"customer": "Anna", "quantity": 3}'


def test_a_right_answer():
    verdict = judge(' {"quantity": 3, "customer": "Anna"}\n', REFERENCE, SCHEMA)
    assert (verdict.exact, verdict.parses, verdict.fits_schema) == (True, True, True)
    assert verdict.fields == {"customer": True, "quantity": True}


def test_fits_the_schema_but_one_field_is_wrong():
    verdict = judge('{"customer": "Ann", "quantity": 3}', REFERENCE, SCHEMA)
    assert (verdict.exact, verdict.parses, verdict.fits_schema) == (False, True, True)
    assert verdict.fields == {"customer": False, "quantity": True}


def test_parses_but_does_not_fit():
    verdict = judge('{"customer": "Anna", "quantity": "3"}', REFERENCE, SCHEMA)
    assert (verdict.exact, verdict.parses, verdict.fits_schema) == (False, True, False)


def test_an_extra_field_leaves_the_fields_right_but_not_the_whole():
    verdict = judge('{"customer": "Anna", "quantity": 3, "note": ""}', REFERENCE)
    assert verdict.fields == {"customer": True, "quantity": True}
    assert verdict.exact is False
    assert verdict.fits_schema is None


def test_a_field_that_is_null_in_the_reference_must_be_there():
    assert judge('{"a": 1}', '{"a": 1, "b": null}').fields == {"a": True, "b": False}


def test_no_json_is_wrong_everywhere():
    verdict = judge(f"Sure! {REFERENCE}", REFERENCE, SCHEMA)
    assert (verdict.exact, verdict.parses, verdict.fits_schema) == (False, False, False)
    assert verdict.fields == {"customer": False, "quantity": False}


def test_an_answer_null_does_not_pass_for_a_failed_parse():
    assert judge("null", "[]").parses is True
    assert judge("nul", "[]").parses is False


def test_plain_text_is_compared_without_surrounding_space():
    assert judge("Paris \n", "Paris").exact is True
    assert judge("paris", "Paris").exact is False
    assert judge("42", "42").parses is None  # a number is text here, although it parses


@given(st.text(), JSON_VALUES)
def test_any_answer_gets_a_verdict(answer, reference):
    verdict = judge(answer, json.dumps(reference), SCHEMA)
    assert not verdict.fits_schema or verdict.parses
    if verdict.exact and verdict.fields is not None:
        assert all(verdict.fields.values())


def test_tally_counts_by_hand():
    verdicts = [
        judge(REFERENCE, REFERENCE, SCHEMA),
        judge('{"customer": "Ben", "quantity": 3}', REFERENCE, SCHEMA),
        judge('{"customer": "Anna"}', REFERENCE, SCHEMA),
        judge("no", REFERENCE, SCHEMA),
    ]
    scores = tally(verdicts)
    # exact 1 of 4; parses 3; fits 2 (the third lacks quantity); fields 2 + 1 + 1 + 0 of 8; customer 2, quantity 2 of 4.
    assert (scores.rows, scores.exact, scores.parses, scores.fits_schema, scores.fields_right) == (
        4,
        0.25,
        0.75,
        0.5,
        0.5,
    )
    assert scores.by_field == {"customer": 0.5, "quantity": 0.5}


def test_tally_has_no_share_where_nothing_asks():
    scores = tally([judge("Paris", "Paris"), judge("Rome", "Paris")])
    assert (scores.exact, scores.parses, scores.fits_schema, scores.fields_right) == (0.5, None, None, None)
    assert tally([]).exact is None


def test_the_room_imports_no_torch_before_it_is_used():
    names = ("suite", "compare", "general", "run")
    modules = ", ".join(["hf_recipes.core.generation", *(f"hf_recipes.evaluation.{name}" for name in names)])
    code = f"import sys, hf_recipes.cli.evaluate, {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
