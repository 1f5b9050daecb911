from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.printable import printable
from hf_recipes.data.inspection.segments import Segment, as_text, render_sample, segments


def test_learned_text_is_marked_and_all_text_is_there(tokenizer):
    text = "<|im_start|>assistant\none<|im_end|>\n<|im_start|>user"
    ids = tokenizer(text, add_special_tokens=False).input_ids
    one, end = tokenizer("one", add_special_tokens=False).input_ids, tokenizer.eos_token_id
    answer = [*one, end]
    start = next(i for i in range(len(ids)) if ids[i : i + len(answer)] == answer)
    labels = [-100] * start + answer + [-100] * (len(ids) - start - len(answer))
    assert render_sample(ids, labels, tokenizer) == "<|im_start|>assistant\n«one<|im_end|>»\n<|im_start|>user"
    assert "assistant\n\033[32mone<|im_end|>\033[0m\n" in render_sample(ids, labels, tokenizer, color=True)
    assert "".join(part.text for part in segments(ids, labels, tokenizer)) == text


def test_a_label_unlike_its_token_is_shown_as_what_is_learned(tokenizer):
    yes, no = (tokenizer(word, add_special_tokens=False).input_ids[0] for word in ("yes", "no"))
    assert segments([yes, yes], [-100, no], tokenizer)[1] == Segment(tokenizer.decode([no]), True)


def test_data_cannot_command_the_terminal():
    shown = as_text([Segment("a\033[2Jb\r\x07\x9b", False), Segment("\033]0;title\x07", True)])
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in shown)
    assert shown.startswith("a␛[2Jb␍␇")


@given(st.text())
def test_ordinary_text_is_shown_as_it_is(text):
    shown = printable(text)
    assert len(shown) == len(text)
    assert all(a == b or ord(a) < 32 or 0x7F <= ord(a) < 0xA0 for a, b in zip(text, shown, strict=True))
