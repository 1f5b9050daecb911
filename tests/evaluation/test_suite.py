from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.evaluation.suite import EvaluationSuite, draw


def row(answer: str = '{"a": 1}', **extra) -> dict:
    return {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": answer}], **extra}


def source(path: Path) -> SourceSpec:
    return SourceSpec(str(path))


@pytest.fixture
def domain(tmp_path) -> Path:
    return write_rows(tmp_path / "domain.jsonl", [row(), row('{"a": 2}')])


def write_rows(path: Path, rows: list) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in rows), "utf-8")
    return path


def test_defaults_and_given_values(domain, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text("{}")
    suite = EvaluationSuite.from_dict({"domain": str(domain), "schema": str(schema), "general": None, "samples": 8})
    assert suite == EvaluationSuite(
        domain=source(domain), schema=schema, general=None, max_new_tokens=48, samples=8, batch_size=32
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample": 3}, "evaluation.sample is no key (did you mean 'samples'?)"),
        ({"domain": None}, "evaluation.domain is missing"),
        ({"domain": "/nowhere/rows.jsonl"}, "evaluation.domain: the file '/nowhere/rows.jsonl' does not exist"),
        ({"general": "/nowhere/g.jsonl"}, "evaluation.general: the file '/nowhere/g.jsonl' does not exist"),
        ({"schema": {"type": "object"}}, "evaluation.schema: {'type': 'object'} is not a path"),
        ({"samples": 0}, "evaluation.samples: 0 is not a positive whole number"),
        ({"batch_size": True}, "evaluation.batch_size: True is not"),
        ({"max_new_tokens": "48"}, "evaluation.max_new_tokens: '48' is not"),
        ({"scores": ["rogue"]}, "evaluation.scores: 'rogue' is no score (did you mean 'rouge'?)"),
        ({"function": "nowhere.py:score"}, "evaluation.function: the file 'nowhere.py' does not exist"),
        ({"function": "score"}, "evaluation.function: 'score' is not of the form file.py:function"),
        ({"format": "json"}, "evaluation.format: 'json' is not a mapping"),
        ({"tasks": ["/nowhere/task.yaml"]}, "evaluation.tasks: the file '/nowhere/task.yaml' does not exist"),
        ({"stop": [3]}, "evaluation.stop: [3] is not a list of texts"),
        ({"gate": "format"}, "The gate's 'format' is not of the form"),
        ({"rating": {"critera": ["a"]}}, "evaluation.rating: {'critera': ['a']} is not of the form"),
        ({"rating": {"samples": -1}}, "evaluation.rating.samples: -1 is not a positive whole number"),
        ({"during_training": -2}, "evaluation.during_training: -2 is not a positive whole number"),
    ],
)
def test_wrong_settings_are_one_sentence(domain, change, message):
    with pytest.raises(UserError) as error:
        EvaluationSuite.from_dict({"domain": str(domain), **change})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{not json\n", "line 2: not valid JSON"),
        ([1, 2], "line 2: the row is not an object"),
        ({"prompt": "x"}, "line 2: field 'messages' is null, not a list"),
        ({"messages": [{"role": "user", "content": "Q"}]}, "line 2: no assistant turn"),
        ({"messages": [{"role": "assistant", "content": "A"}]}, "line 2: no assistant turn after a prompt"),
        ({"messages": []}, "line 2: field 'messages' is empty"),
        (
            {"messages": [{"role": "user", "content": {"x": 1}}]},
            "line 2: the content of a turn in 'messages'",
        ),
        ({"messages": [{"role": "user", "content": "Q"}, "A"]}, "line 2: a turn in 'messages' is str"),
    ],
)
def test_an_ill_formed_row_names_file_and_line(tmp_path, bad, message):
    path = write_rows(tmp_path / "d.jsonl", [row(), bad])
    with pytest.raises(UserError) as error:
        EvaluationSuite(domain=source(path)).rows()
    assert f"{path}, {message}" in str(error.value)


def test_an_empty_file_and_a_binary_one(tmp_path):
    with pytest.raises(UserError, match="holds no rows"):
        EvaluationSuite(domain=source(write_rows(tmp_path / "d.jsonl", ["\n", " \n"]))).rows()
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="convert it to UTF-8"):
        EvaluationSuite(domain=source(tmp_path / "b.jsonl")).rows()


def test_the_last_assistant_turn_is_the_reference(tmp_path):
    turns = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "Q1"},
        {"role": "assistant", "content": "A1"},
        {"role": "user", "content": "Q2"},
        {"role": "assistant", "content": "A2"},
    ]
    path = write_rows(tmp_path / "d.jsonl", ["\n", {"messages": turns}])
    (only,) = EvaluationSuite(domain=source(path)).rows()
    assert (only.number, only.messages, only.reference) == (2, turns[:4], "A2")


@pytest.mark.parametrize(
    ("schema", "message"), [("{", "is not valid JSON"), ('{"type": "objct"}', "is not a JSON Schema")]
)
def test_a_broken_schema(tmp_path, domain, schema, message):
    path = tmp_path / "schema.json"
    path.write_text(schema)
    with pytest.raises(UserError, match=message):
        EvaluationSuite(domain=source(domain), schema=path).rows()


def test_references_that_do_not_fit_are_told(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("hf_recipes"), "propagate", True)
    path = write_rows(tmp_path / "d.jsonl", [row(), row('{"a": "x"}'), row("plain")])
    schema = tmp_path / "schema.json"
    schema.write_text('{"properties": {"a": {"type": "integer"}}}')
    assert len(EvaluationSuite(domain=source(path), schema=schema).rows()) == 3
    assert "2 of 3 references do not fit" in caplog.text
    assert "first in row 2" in caplog.text


@given(st.lists(st.integers(), max_size=40, unique=True), st.integers(1, 50))
def test_a_draw_is_repeatable_in_order_and_without_repeats(rows, count):
    drawn = draw(rows, count)
    assert drawn == draw(rows, count)
    assert len(drawn) == min(count, len(rows))
    assert drawn == [row for row in rows if row in set(drawn)]


def test_a_draw_is_not_the_head():
    assert draw(list(range(1000)), 10) != list(range(10))


def test_any_set_will_do_but_what_judges_answers_needs_some(domain, tmp_path):
    assert EvaluationSuite.from_dict({"general": str(domain)}).rows() == []
    with pytest.raises(UserError, match=r"evaluation\.scores judges answers to evaluation\.domain, which is missing"):
        EvaluationSuite.from_dict({"general": str(domain), "scores": ["f1"]})


def test_schema_is_short_for_a_format(domain, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text("{}")
    assert EvaluationSuite.from_dict({"domain": str(domain), "schema": str(schema)}).format_spec == {"schema": schema}
    assert EvaluationSuite.from_dict({"domain": str(domain), "format": {"json": True}}).format_spec == {"json": True}
    with pytest.raises(UserError, match="keep one of the two"):
        EvaluationSuite.from_dict({"domain": str(domain), "schema": str(schema), "format": {"json": True}})


def test_single_texts_stand_for_lists_and_off_for_nothing(domain):
    suite = EvaluationSuite.from_dict(
        {"domain": str(domain), "scores": "f1", "stop": "END", "gate": "exact>0.5,cut<0.1", "during_training": False}
    )
    assert (suite.scores, suite.stop, suite.during_training) == (("f1",), ("END",), 0)
    assert [condition.name for condition in suite.gate] == ["exact", "cut"]
    assert EvaluationSuite.from_dict({"domain": str(domain), "rating": True}).rating.samples == 40


def test_other_right_answers_may_stand_in_a_row(tmp_path):
    path = write_rows(tmp_path / "d.jsonl", [row("Paris", references=["paris", "Paris, France"], topic="cities")])
    (only,) = EvaluationSuite(domain=source(path)).rows()
    assert (only.references, only.given["topic"]) == (("paris", "Paris, France"), "cities")
    with pytest.raises(UserError, match="line 1: 'references' is not a list of texts"):
        EvaluationSuite(domain=source(write_rows(tmp_path / "e.jsonl", [row(references="Paris")]))).rows()


@pytest.mark.parametrize(
    ("name", "content", "settings"),
    [
        ("rows.csv", "question,answer\nQ,A\n", {"columns": {"prompt": "question", "completion": "answer"}}),
        ("rows.json", json.dumps([{"instruction": "Q", "output": "A"}]), {}),
        (
            "rows.jsonl",
            json.dumps({"conversations": [{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}),
            {},
        ),
    ],
)
def test_rows_may_have_any_format_that_is_trained_on(tmp_path, name, content, settings):
    (tmp_path / name).write_text(content)
    suite = EvaluationSuite.from_dict({"domain": {"path": str(tmp_path / name), **settings}})
    (only,) = suite.rows()
    assert (only.messages, only.reference) == ([{"role": "user", "content": "Q"}], "A")


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ({"path": "/nowhere/rows.csv"}, "'/nowhere/rows.csv' does not exist"),
        ({"path": "rows.csv", "weight": 2}, "evaluation.domain.weight is no key: known are path, name"),
        ({"columns": {}}, "evaluation.domain: path must name a file"),
        (
            {"path": "rows.csv", "columns": {"promt": "q"}},
            "columns maps unknown field 'promt' (did you mean 'prompt'?)",
        ),
        (
            {"path": "rows.csv", "columns": {"Question": "instruction"}},
            "columns is written the other way round, our field first: columns: {instruction: Question}.",
        ),
    ],
)
def test_a_wrong_source_is_one_sentence(domain, message):
    with pytest.raises(UserError) as error:
        EvaluationSuite.from_dict({"domain": domain})
    assert message in str(error.value) and "\n" not in str(error.value)


def test_rows_that_ask_nothing_are_refused(tmp_path):
    (tmp_path / "rows.txt").write_text("Only text.\n")
    with pytest.raises(UserError, match="is plain text, which asks nothing"):
        EvaluationSuite(domain=source(tmp_path / "rows.txt")).rows()
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    path = write_rows(tmp_path / "rows.jsonl", [{"messages": [{"role": "user", "content": "Q"}, call]}])
    with pytest.raises(UserError, match="line 1: its last assistant turn calls a tool"):
        EvaluationSuite(domain=source(path)).rows()


def test_tools_are_kept_for_the_prompt(tmp_path):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    (only,) = EvaluationSuite(domain=source(write_rows(tmp_path / "t.jsonl", [row("A", tools=[tool])]))).rows()
    assert only.tools == [tool]
