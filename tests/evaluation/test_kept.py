from __future__ import annotations

import json
import logging
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.evaluation.identity import model_identity
from hf_recipes.evaluation.kept import KeptAnswers, read_lines

HEADER = {"models": {"model": "m1"}, "asked": {"max_new_tokens": 8, "stop": []}}
ROWS = st.lists(
    st.fixed_dictionaries({"part": st.just("row"), "answer": st.text(max_size=8)}), min_size=1, max_size=8
).map(lambda rows: [{"key": f"k{index}", **row} for index, row in enumerate(rows)])


@pytest.fixture
def told(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("hf_recipes"), "propagate", True)
    return caplog


def as_written(rows: list[dict]) -> dict[str, dict]:
    """JSON has no half surrogate pairs."""
    safe = [{**row, "answer": row["answer"].encode("utf-8", "backslashreplace").decode()} for row in rows]
    return {row["key"]: row for row in safe}


@settings(deadline=None, max_examples=10)  # each line is synced to disk
@given(ROWS, st.data())
def test_killed_anywhere_at_most_the_line_being_written_is_lost(rows, data):
    """A file cut at any byte of its last line gives all lines before it, and goes on from there to the same file."""
    with tempfile.TemporaryDirectory() as folder:
        kept = KeptAnswers(Path(folder) / "tuned.jsonl", HEADER)
        kept.collect()
        for row in rows:
            kept.append([row])
        whole = kept.path.read_bytes()
        last = len(whole.rstrip(b"\n").rpartition(b"\n")[0]) + 1
        kept.path.write_bytes(whole[: data.draw(st.integers(last, len(whole) - 2))])
        found = kept.collect()
        assert found == as_written(rows[:-1])
        kept.append(rows[len(found) :])
        assert kept.path.read_bytes() == whole


def test_what_several_processes_wrote_is_brought_together(tmp_path):
    kept = KeptAnswers(tmp_path / "evaluation" / "tuned.jsonl", HEADER)
    kept.append([{"key": "a", "answer": "0"}])
    for rank in (0, 1):
        kept.append([{"key": f"b{rank}", "answer": str(rank)}], rank)
    assert set(kept.collect()) == {"a", "b0", "b1"}
    assert [file.name for file in kept.path.parent.iterdir()] == ["tuned.jsonl"]
    assert set(kept.read()) == {"a", "b0", "b1"}
    assert kept.collect(fresh=True) == {}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({**HEADER, "models": {"model": "m2"}}, "1 answers belong to another model"),
        (
            {**HEADER, "asked": {"max_new_tokens": 9, "stop": []}},
            "belong to other settings (max_new_tokens 8, now 9)",
        ),
    ],
)
def test_answers_of_another_model_or_setting_are_told_and_not_used(tmp_path, told, header, message):
    path = tmp_path / "tuned.jsonl"
    KeptAnswers(path, HEADER).append([{"key": "a", "answer": "0"}])
    assert KeptAnswers(path, header).collect() == {}
    assert message in told.text
    assert KeptAnswers(path, HEADER).read() == {}  # begun anew


def test_a_torn_line_is_told(tmp_path, told):
    path = tmp_path / "tuned.jsonl"
    path.write_text('{"key": "a"}\n{"key": "b", "answ')
    assert [line["key"] for line in read_lines(path)] == ["a"]
    assert "1 line(s) cut short" in told.text


def test_a_line_separator_inside_an_answer_ends_no_line(tmp_path):
    kept = KeptAnswers(tmp_path / "tuned.jsonl", HEADER)
    kept.append([{"key": "a", "answer": "one\u2028two\x85three"}, {"key": "b", "nats": float("nan")}])
    assert kept.read() == {"a": {"key": "a", "answer": "one\u2028two\x85three"}, "b": {"key": "b", "nats": "nan"}}


def test_a_model_is_known_by_its_weights_and_files(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    weights = directory / "model.safetensors"
    weights.write_bytes(bytes(3_000_000))
    (directory / "config.json").write_text("{}")
    first = model_identity(directory, None)
    (directory / "README.md").write_text("words")
    assert model_identity(directory, None) == first
    changed = bytearray(3_000_000)
    changed[-1] = 1
    weights.write_bytes(changed)
    second = model_identity(directory, None)
    (directory / "config.json").write_text(json.dumps({"a": 1}))
    assert len({first, second, model_identity(directory, None)}) == 3
    assert model_identity("owner/name", "a") != model_identity("owner/name", "b")
