from __future__ import annotations

import pytest

from hf_recipes.data.clean.emptiness import is_empty, is_special_tokens_only


@pytest.mark.parametrize("text", ["", " \n\t", "...", "…", "-", "。", "\u200b", "?!", "\u3000", "___", "()"])
def test_nothing_but_punctuation_is_empty(text):
    assert is_empty(text)


@pytest.mark.parametrize("text", ["0", "A", "是", "+", "=", "👍", "€", "½", "∅", "no.", "ا", "🏴"])
def test_a_letter_digit_or_symbol_is_something(text):
    assert not is_empty(text)


@pytest.mark.parametrize(
    "text",
    [
        "<|im_end|>",
        " <|endoftext|>\n<|endoftext|>",
        "</s>",
        "<pad><pad>",
        "[PAD] [SEP]",
        "<｜end▁of▁sentence｜>",
        "<eos>",
    ],
)
def test_special_tokens_alone_are_known_by_their_form(text):
    assert is_special_tokens_only(text)


@pytest.mark.parametrize(
    "text", ["", " ", "yes <|im_end|>", "<b>", "[1]", "[x]", "<think>", "a</s>", "<name>", "[DONE] ok"]
)
def test_other_texts_are_not(text):
    assert not is_special_tokens_only(text)


def test_the_tokenizers_own_tokens_count():
    assert not is_special_tokens_only("§§END§§")
    assert is_special_tokens_only("§§END§§ <pad>", iter(["§§END§§", ""]))
    assert not is_special_tokens_only("§§END§§ fine", ["§§END§§"])
