from __future__ import annotations

import json

import pytest

from hf_recipes.quickstart.general import (
    HELD_OUT_PROMPTS,
    MAX_ANSWER_TOKENS,
    TRAINING_PROMPTS,
    answer_prompts,
    general_heldout_path,
    general_rows_path,
    whole_sentences,
)


def read_rows(path):
    return [json.loads(line)["messages"] for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize(
    ("path", "prompts"), [(general_rows_path(), TRAINING_PROMPTS), (general_heldout_path(), HELD_OUT_PROMPTS)]
)
def test_the_shipped_rows_answer_the_prompts_in_order(path, prompts):
    rows = read_rows(path)
    asked = [row[0]["content"] for row in rows]
    assert [prompt for prompt in prompts if prompt in asked] == asked
    assert len(rows) >= 0.9 * len(prompts)
    for row in rows:
        assert [message["role"] for message in row] == ["user", "assistant"]
        assert row[1]["content"].strip() == row[1]["content"] != ""


def test_no_prompt_is_asked_twice_or_on_both_sides():
    prompts = (*TRAINING_PROMPTS, *HELD_OUT_PROMPTS)
    assert len({prompt.lower() for prompt in prompts}) == len(prompts)
    assert (len(TRAINING_PROMPTS), len(HELD_OUT_PROMPTS)) == (120, 32)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("One. Two! Thr", "One. Two!"),
        ("It costs 3.5 euros? Yes, it c", "It costs 3.5 euros?"),
        ("Steps:\n1. Boil water.\n2. Add", "Steps:\n1. Boil water."),
        ("no end in sight", ""),
        ("All of it.", "All of it."),
    ],
)
def test_a_cut_answer_ends_with_its_last_whole_sentence(text, kept):
    assert whole_sentences(text) == kept


def test_answering_yields_messages_for_each_prompt_it_can_answer(tiny_model, tokenizer, monkeypatch):
    import copy

    tiny_model.eval()
    left = copy.deepcopy(tokenizer)
    left.padding_side = "left"
    prompts = TRAINING_PROMPTS[:18]  # more than a batch
    # A random model neither ends nor writes sentences: nothing may be kept unless a whole sentence is there.
    rows = list(answer_prompts(tiny_model, left, prompts))
    for row in rows:
        assert row["messages"][0]["content"] in prompts
        assert whole_sentences(row["messages"][1]["content"]) == row["messages"][1]["content"]
    monkeypatch.setattr(tiny_model, "generate", lambda input_ids, **_: _with_answer(input_ids, left))
    rows = list(answer_prompts(tiny_model, left, prompts))
    assert [row["messages"][0]["content"] for row in rows] == list(prompts)
    assert {row["messages"][1]["content"] for row in rows} == {"An answer"}


def _with_answer(input_ids, tokenizer):
    import torch

    answer = tokenizer("An answer<|im_end|><|im_end|>", return_tensors="pt")["input_ids"]
    return torch.cat([input_ids, answer.expand(len(input_ids), -1)], dim=1)


@pytest.mark.real_model
def test_the_shipped_answers_are_the_base_models_own(smollm2_dir):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_dir, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()
    rows = [row for row in read_rows(general_heldout_path()) if len(row[1]["content"]) < 60][:4]
    again = list(answer_prompts(model, tokenizer, [row[0]["content"] for row in rows]))
    # The Hub's weights differ from those of the 4-bit file, so words may differ: most answers begin alike.
    alike = sum(
        new["messages"][1]["content"][:8] == row[1]["content"][:8] for new, row in zip(again, rows, strict=True)
    )
    assert alike >= 2
    longest = max(len(tokenizer(row[1]["content"])["input_ids"]) for row in read_rows(general_rows_path()))
    assert longest <= MAX_ANSWER_TOKENS
