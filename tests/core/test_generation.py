from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.generation import (
    end_token_ids,
    generate_answers,
    left_pad,
    length_batches,
    render_prompt,
    until_end,
)

CONVERSATIONS = [
    [{"role": "user", "content": text}] for text in ("Hi", "Please send 12 blue pens to Anna by March 3.", "A b c d e")
]


@given(st.lists(st.integers(0, 50), max_size=40), st.integers(1, 9))
def test_batches_hold_every_index_once_longest_first(lengths, batch_size):
    batches = length_batches(lengths, batch_size)
    order = [index for batch in batches for index in batch]
    assert sorted(order) == list(range(len(lengths)))
    assert [lengths[index] for index in order] == sorted(lengths, reverse=True)
    assert all(len(batch) == batch_size for batch in batches[:-1])


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=7), min_size=1, max_size=5), st.integers(0, 5))
def test_left_padding_marks_real_tokens_by_position(rows, pad):
    ids, mask = left_pad(rows, pad)
    assert len({len(row) for row in ids} | {len(row) for row in mask}) == 1
    for row, filled, marks in zip(rows, ids, mask, strict=True):
        assert [token for token, mark in zip(filled, marks, strict=True) if mark] == row
        assert marks == sorted(marks)


@given(st.lists(st.integers(0, 5), max_size=10), st.sets(st.integers(0, 5), max_size=2))
def test_an_answer_ends_at_its_first_end_token(row, ends):
    kept = until_end(row, ends)
    assert kept == row[: len(kept)]
    assert not ends & set(kept[:-1])
    assert len(kept) == len(row) or kept[-1] in ends


def greedy_by_hand(model, prompt: list[int], ends: list[int], limit: int) -> list[int]:
    tokens = list(prompt)
    with torch.inference_mode():
        while len(tokens) < len(prompt) + limit:
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
            if tokens[-1] in ends:
                break
    return tokens[len(prompt) :]


def test_d12_answers_in_a_padded_batch_are_those_of_each_prompt_alone(tokenizer, tiny_model):
    # pad = eos in this tokenizer: padding by token id would hide the prompts' own turn ends
    with torch.no_grad():  # fresh weights barely attend: ten times larger, what is masked changes the answers
        for parameter in tiny_model.parameters():
            parameter.mul_(10)
    ends = end_token_ids(tiny_model, tokenizer)
    result = generate_answers(tiny_model, tokenizer, CONVERSATIONS, max_new_tokens=6, batch_size=3)
    tokens = [greedy_by_hand(tiny_model.eval(), render_prompt(tokenizer, turns), ends, 6) for turns in CONVERSATIONS]
    assert result.answers == [tokenizer.decode(row, skip_special_tokens=True) for row in tokens]
    assert result.new_tokens == sum(map(len, tokens))
    assert result.seconds > 0


def test_sampling_settings_and_penalties_of_the_model_are_set_aside(tokenizer, tiny_model):
    plain = generate_answers(tiny_model, tokenizer, CONVERSATIONS, max_new_tokens=8, batch_size=2)
    tiny_model.generation_config.update(
        do_sample=True, temperature=5.0, top_p=0.3, repetition_penalty=3.0, no_repeat_ngram_size=1
    )
    assert (
        generate_answers(tiny_model, tokenizer, CONVERSATIONS, max_new_tokens=8, batch_size=2).answers == plain.answers
    )


def test_end_tokens_are_those_of_config_and_tokenizer(tokenizer, tiny_model):
    tiny_model.generation_config.eos_token_id = [5, 9]
    assert end_token_ids(tiny_model, tokenizer) == sorted({5, 9, tokenizer.eos_token_id})
    tiny_model.generation_config.eos_token_id = None
    assert end_token_ids(tiny_model, tokenizer) == [tokenizer.eos_token_id]


def test_cut_counts_answers_without_an_end(tokenizer, tiny_model):
    first = greedy_by_hand(tiny_model.eval(), render_prompt(tokenizer, CONVERSATIONS[0]), [], 1)
    unending = generate_answers(tiny_model, tokenizer, CONVERSATIONS[:1], max_new_tokens=3, batch_size=1)
    tiny_model.generation_config.eos_token_id = first
    ending = generate_answers(tiny_model, tokenizer, CONVERSATIONS[:1], max_new_tokens=3, batch_size=1)
    assert (unending.cut, ending.cut) == (1, 0)
    assert ending.new_tokens == 1


def test_training_mode_is_put_back(tokenizer, tiny_model):
    tiny_model.train()
    generate_answers(tiny_model, tokenizer, CONVERSATIONS[:1], max_new_tokens=1, batch_size=1)
    assert tiny_model.training


def test_latency_is_per_answer_and_per_token(tokenizer, tiny_model):
    result = generate_answers(tiny_model, tokenizer, CONVERSATIONS, max_new_tokens=2, batch_size=2)
    assert result.seconds_per_answer == pytest.approx(result.seconds / 3)
    assert result.tokens_per_second == pytest.approx(result.new_tokens / result.seconds)


def test_a_stop_text_ends_an_answer_and_is_no_part_of_it(tokenizer, tiny_model):
    """Each answer of a padded batch is cut where the plain one has the text, and counts the tokens up to it. The prompt
    ends in a line break, which is no part of what was written."""
    settings = {"max_new_tokens": 12, "batch_size": 3}
    plain = generate_answers(tiny_model, tokenizer, CONVERSATIONS, **settings)
    stop = plain.answers[1][3:5]
    assert len(stop) == 2
    stopped = generate_answers(tiny_model, tokenizer, CONVERSATIONS, stop=[stop, "never said"], **settings)
    assert stopped.answers == [answer.partition(stop)[0] for answer in plain.answers]
    assert stopped.answers[1] != plain.answers[1]
    assert stopped.new_tokens < plain.new_tokens
    assert stopped.cut < plain.cut


def test_tools_stand_in_the_prompt(tokenizer, monkeypatch):
    template = "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{{ messages[0].content }}"
    monkeypatch.setattr(tokenizer, "chat_template", template)  # other tests use the same tokenizer
    tool = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
    messages = [{"role": "user", "content": "Q"}]
    assert tokenizer.decode(render_prompt(tokenizer, messages, [tool])) == "weather Q"
    assert tokenizer.decode(render_prompt(tokenizer, messages)) == "Q"
