"""Answers that are none, and words that the chat template adds."""

from __future__ import annotations

import json

import pytest

from hf_recipes.data.inspection.inspection import inspect_data
from hf_recipes.data.inspection.remarkable import placeholder_answers, template_preamble
from hf_recipes.data.inspection.scan import ShortAnswer
from hf_recipes.data.prepare import prepare_data

SYSTEM = "You are a helpful assistant of the makers."
OWN_WORDS = "{% if messages[0].role != 'system' %}{{ '<|im_start|>system\n" + SYSTEM + "<|im_end|>\n' }}{% endif %}"


@pytest.fixture
def speaking(tokenizer, monkeypatch):
    """The tokenizer with a template that begins with a system message of its own, as SmolLM2's and Qwen2.5's do."""
    monkeypatch.setattr(tokenizer, "chat_template", OWN_WORDS + tokenizer.chat_template)
    return tokenizer


@pytest.mark.parametrize(
    ("answer", "is_none"),
    [("N/A", True), (" none.", True), ("-", True), ("...", True), ("(no answer)", True), ("No", False), ("42", False)],
)
def test_answers_that_stand_for_none(answer, is_none, tokenizer):
    ids = tokenizer(answer + "<|im_end|>")["input_ids"]
    found = placeholder_answers([ShortAnswer(ids, 3, "rows.csv:2")], tokenizer)
    assert [(each.text, each.count, each.row_id) for each in found] == ([(answer.strip(), 3, "rows.csv:2")] * is_none)


def test_what_a_template_says_by_itself(speaking):
    assert template_preamble(speaking) == SYSTEM


def test_a_template_that_says_nothing_or_refuses(tokenizer, monkeypatch):
    assert template_preamble(tokenizer) == ""
    monkeypatch.setattr(tokenizer, "chat_template", "{{ raise_exception('no') }}")
    assert template_preamble(tokenizer) == ""
    monkeypatch.setattr(tokenizer, "chat_template", None)
    assert template_preamble(tokenizer) == ""


def sentences(path, tokenizer, **more) -> str:
    rows = [{"prompt": f"What is {number}?", "completion": f"It is {number}.", **more} for number in range(8)]
    if not more:
        rows[2]["completion"] = rows[5]["completion"] = "N/A"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = prepare_data([{"path": str(path)}], tokenizer, eval_share=0)
    return "\n".join(verdict.sentence for verdict in inspect_data(data, tokenizer, batches=2).verdicts)


def test_both_are_told(tmp_path, speaking):
    told = sentences(tmp_path / "rows.jsonl", speaking)
    assert "Some answers look like none ('N/A' in 2 conversations; first: " in told
    assert "rows.jsonl:3): take the rows out" in told
    assert f"with words of its own ({SYSTEM!r})" in told


def test_rows_with_a_system_turn_and_real_answers_are_not_remarked_on(tmp_path, speaking):
    told = sentences(tmp_path / "rows.jsonl", speaking, system="Be brief.")
    assert "look like none" not in told and "words of its own" not in told
