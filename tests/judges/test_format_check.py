from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.judges.formats import FormatVerdict, format_check
from hf_recipes.evaluation.judges.regex_format import RegexFormat

SCHEMA = {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}
CONTAINERS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: isinstance(value, (dict, list)))
STRICT, FENCED, PROSE, NONE = (True, True, False), (False, True, False), (False, True, True), (False, False, False)


def told(verdict: FormatVerdict) -> tuple[bool, bool, bool]:
    assert (verdict.why == "") == verdict.strict
    return verdict.strict, verdict.lenient, verdict.extra_prose


@pytest.mark.parametrize(
    ("spec", "answer", "expected"),
    [
        ({"json": True}, ' {"a": 1}\n', STRICT),
        ({"json": True}, '```json\n{"a": 1}\n```', FENCED),
        ({"json": True}, '```\n{"a": 1}', FENCED),  # cut before the fence was closed
        ({"json": True}, '```{"a": 1}```', FENCED),
        ({"json": True}, 'Sure! {"a": {"b": "}"}} Anything else?', PROSE),
        ({"json": True}, 'Here:\n```json\n{"a": 1}\n```', PROSE),
        ({"json": True}, "As shown in [1], no.", NONE),  # a citation, not an array
        ({"json": True}, "Here it is:\n[1, 2]\nDone.", PROSE),
        ({"json": True}, "42", NONE),
        ({"json": True}, "", NONE),
        ({"json": True}, '{"a": NaN}', NONE),
        ({"json": True}, "{'a': 1}", NONE),
        ({"schema": SCHEMA}, '{"a": 1}', STRICT),
        ({"schema": SCHEMA}, '{"a": "1"}', NONE),
        ({"schema": SCHEMA}, 'first {"b": 1}, no: {"a": 1}', PROSE),  # any part may be what fits
        ({"schema": {"type": "integer"}}, "42", STRICT),
        ({"regex": r"\d{4}-\d\d"}, "2024-05", STRICT),
        ({"regex": r"\d{4}-\d\d"}, "2024-05-01", PROSE),
        ({"regex": r"\d{4}-\d\d"}, "`2024-05`", PROSE),
        ({"regex": r"\d{4}-\d\d"}, "```\n2024-05\n```", FENCED),
        ({"regex": r"\d*"}, "none", NONE),  # an empty match is no find
        ({"regex": "yes|no"}, "yes!", PROSE),  # alternatives are taken whole
        ({"xml": True}, "<a><b/></a>", STRICT),
        ({"xml": "answer"}, "<a/>", NONE),
        ({"xml": "answer"}, "I say <answer x='1'>yes</answer>.", PROSE),
        ({"xml": "answer"}, "```xml\n<answer/>\n```", FENCED),
        ({"xml": True}, "<a><b></a>", NONE),
        ({"xml": True}, "1 < 2", NONE),
        ({"xml": True}, "<a/> and <b/>", PROSE),
        ({"code": "python"}, "x = 1", STRICT),
        ({"code": "python"}, "```python\nprint(1)\n```", FENCED),
        ({"code": "python"}, "Run this:\n```py\nprint(1)\n```", PROSE),
        ({"code": "python"}, "```js\nx = 1\n```", NONE),
        ({"code": "python"}, "Yes", NONE),  # parses, as a name
        ({"code": "python"}, "# only a comment", NONE),
        ({"code": "python"}, "def f(:", NONE),
        ({"code": "json"}, "[1]", STRICT),
    ],
)
def test_what_is_strict_lenient_and_amid_prose(spec, answer, expected):
    assert told(format_check(spec)(answer)) == expected


@settings(deadline=None)
@given(CONTAINERS, st.sampled_from(["", "Sure:", "Here you are.\n\n"]), st.sampled_from(["", "\nThat is all."]))
def test_json_is_found_wherever_it_stands(value, before, after):
    check = format_check({"json": True})
    verdict = check(f"{before}\n```json\n{json.dumps(value)}\n```{after}")
    assert verdict.lenient and not verdict.strict
    assert verdict.extra_prose == bool(before or after)
    assert check(json.dumps(value)).strict


@settings(deadline=None)
@given(
    st.text(alphabet='{}[]",:`~<>/ab1\n '),
    st.sampled_from(
        [{"json": True}, {"schema": SCHEMA}, {"xml": True}, {"xml": "a"}, {"code": "python"}, {"regex": "x+y"}]
    ),
)
def test_strict_is_lenient_and_prose_needs_a_find(answer, spec):
    verdict = format_check(spec)(answer)
    assert verdict.lenient or not verdict.strict
    assert verdict.lenient or not verdict.extra_prose
    assert not (verdict.strict and verdict.extra_prose)


HOSTILE = {
    "brackets": "[" * 100_000,
    "objects": '{"a":' * 100_000,
    "braces": "{" * 1_000_000,
    "open strings": '{"a' * 300_000,
    "lines of arrays": "[1,\n" * 100_000,
    "a megabyte of text": "word " * 200_000,
    "a surrogate": "\ud800",
    "nul": "\0",
    "parentheses": "(" * 100_000,
    "minus signs": "-" * 100_000 + "1",
    "attributes": "a" + ".b" * 90_000,
    "sums": "1" + "+1" * 90_000,
    "a huge number": "9" * 100_000,
    "tags": "<a>" * 100_000,
    "fences": "```\n" * 100_000,
    "backticks": "`" * 1_000_000,
    "a fence that is none": "```" + "a" * 1_000_000 + "`",
    "declarations": "<?xml " * 100_000,
}


@pytest.mark.parametrize(
    "spec", [{"json": True}, {"schema": SCHEMA}, {"xml": True}, {"code": "python"}, {"regex": "x+y"}]
)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_judged(spec, name):
    started = time.process_time()
    assert not format_check(spec)(HOSTILE[name]).strict
    assert time.process_time() - started < 60  # quadratic searches take hours


def test_a_pattern_that_never_ends_is_given_up():
    # (a|aa)+$ on n letters a and a b has as many ways as the n-th Fibonacci number
    pattern = RegexFormat("(a|aa)+$", seconds=0.2)
    assert "within 0.2 s" in pattern.fault("a" * 200 + "b")
    assert list(pattern.pieces("a" * 200 + "b")) == []


def test_patterns_in_schemas_are_bounded_too(monkeypatch):
    from hf_recipes.evaluation.judges import json_format

    monkeypatch.setattr(json_format, "MATCH_SECONDS", 0.2)
    check = format_check({"schema": {"type": "object", "properties": {"a": {"pattern": "^(a|aa)+$"}}}})
    assert "within 0.2 s" in check(json.dumps({"a": "a" * 200 + "b"})).why
    assert check('{"a": "aaa"}').strict
    assert "$.a: 'b' does not match" in check('{"a": "b"}').why


def test_entities_are_never_expanded():
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><x>&b;</x>'
    outside = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><x>&a;</x>'
    for answer in (bomb, outside):
        verdict = format_check({"xml": True})(answer)
        assert not verdict.strict
        assert "document type" in verdict.why


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({}, "exactly one of json, schema"),
        ({"json": True, "regex": "a"}, "exactly one of"),
        ({"jsn": True}, "did you mean 'json'"),
        ({"json": "yes"}, "is not true"),
        ({"regex": "(a"}, "is not a regular expression"),
        ({"regex": 3}, "is not a pattern"),
        ({"regex": ""}, "is not a pattern"),
        ({"xml": "two tags"}, "nor the name of the root tag"),
        ({"xml": "<order>"}, "nor the name of the root tag"),
        ({"xml": 3}, "neither true nor the name"),
        ({"code": "cobol74"}, "no parser for 'cobol74' is here"),
        ({"schema": {"type": "objekt"}}, "not a JSON Schema of Draft 2020-12"),
        (
            {"schema": {"$ref": "http://example.org/a.json"}},
            "refers to 'http://example.org/a.json', which is not in it",
        ),
        ({"schema": {"properties": {"a": {"$ref": "#/$defs/b"}}}}, "refers to '#/\\$defs/b'"),
        ({"schema": "no/such/file.json"}, "cannot be read"),
    ],
)
def test_a_wrong_spec_is_one_sentence(spec, sentence):
    with pytest.raises(UserError, match=sentence):
        format_check(spec)


def test_schemas_with_inner_references(tmp_path):
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"$defs": {"b": {"type": "integer"}}, "properties": {"a": {"$ref": "#/$defs/b"}}}))
    check = format_check({"schema": file})
    assert check('{"a": 1}').strict
    assert check('{"a": "x"}').why == "$.a: 'x' is not of type 'integer'"
    file.write_text("{")
    with pytest.raises(UserError, match="is not valid JSON"):
        format_check({"schema": str(file)})
