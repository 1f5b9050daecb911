from __future__ import annotations

from hf_recipes.data.choosing.keys import row_keys, value_hash
from hf_recipes.data.reading.formats import Example


def chat(*turns):
    roles = ("user", "assistant") * len(turns)
    return Example([{"role": role, "content": text} for role, text in zip(roles, turns, strict=False)])


def test_white_space_and_unicode_composition_do_not_hide_duplicates():
    assert row_keys(chat("q", "café  au\nlait ")) == row_keys(chat("q", "café au lait"))
    assert row_keys(Example(text="a  b")).key == row_keys(Example(text="a b")).key
    assert row_keys(chat("q", "a")).key != row_keys(chat("q", "b")).key


def test_equal_prompts_and_equal_answers_are_told_apart():
    first, second, third = row_keys(chat("q", "a")), row_keys(chat("q", "b")), row_keys(chat("p", "a"))
    assert first.prompt_key == second.prompt_key != third.prompt_key
    assert first.answer_key == third.answer_key != second.answer_key


def test_the_prompt_is_all_before_the_last_answer():
    assert row_keys(chat("q", "a", "r", "b")).prompt_key == row_keys(chat("q", "a", "r", "c")).prompt_key
    assert row_keys(chat("q", "a", "r", "b")).prompt_key != row_keys(chat("q", "x", "r", "b")).prompt_key


def test_function_calls_are_part_of_the_text():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    plain, calling = chat("q", ""), chat("q", "")
    calling.messages[1]["tool_calls"] = [call]
    assert row_keys(plain).key != row_keys(calling).key


def test_values_of_any_json_kind_have_a_hash():
    values = [None, 0, 1, "1", [1], {"b": 1, "a": 2}]
    assert len({value_hash(value) for value in values}) == len(values)
    assert value_hash({"b": 1, "a": 2}) == value_hash({"a": 2, "b": 1})
