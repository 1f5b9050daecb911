"""From character ranges to tokens, against a plain walk over all offsets."""

from __future__ import annotations

import pytest
from chat_families import family_tokenizer, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.data.masking.masks import token_range

END = "<|im_end|>"
TOKENIZERS = {
    "byte_level": family_tokenizer("chatml"),
    "byte_level_whole_offsets": family_tokenizer("chatml", trim_offsets=False),
    "metaspace": make_tokenizer(None, ("<s>", END), END, metaspace=True),
}


def tokens_inside(offsets, text, spans):
    """Which tokens lie in one of the ascending ranges, walking over all of them.

    A token that begins before a range counts only if it brings more than white space into it. Offsets may leave white
    space out, so each token is taken to begin where the last one ended.
    """
    flags = []
    position, done = 0, 0
    for start, end in offsets:
        begin = min(start, done)
        done = max(done, end)
        while position < len(spans) and spans[position][1] <= begin:
            position += 1
        if position == len(spans) or end <= spans[position][0]:
            flags.append(False)
            continue
        first = spans[position][0]
        flags.append(begin >= first or bool(text[first:end].strip()))
    return flags


words = st.lists(
    st.sampled_from(["a", "Sure", " ", "  ", "\n", "\n\n", "日本", "é", "return x", "12"]), max_size=6
).map("".join)


@pytest.mark.parametrize("name", sorted(TOKENIZERS))
def test_d9_ranges_of_answers_hold_the_tokens_a_walk_over_all_offsets_finds(name):
    tokenizer = TOKENIZERS[name]

    @given(st.lists(st.tuples(words, words), min_size=1, max_size=3), words)
    @settings(max_examples=150, deadline=None)
    def agree(turns, tail):
        text, spans = "", []
        for before, answer in turns:
            text += before
            start = len(text)
            text += answer + END
            spans.append((start, len(text)))
        text += tail
        (encoding,) = tokenizer([text], add_special_tokens=False).encodings
        found = [False] * len(encoding)
        for span in spans:
            first, last = token_range(encoding, text, span)
            found[first:last] = [True] * (last - first)
        assert found == tokens_inside(encoding.offsets, text, spans)

    agree()


def test_d9_golden_ranges():
    """The space before ``Sure`` is a part of its token, which counts whether the range begins with it or after it."""
    text = f"x Sure{END}"
    (encoding,) = TOKENIZERS["metaspace"]([text], add_special_tokens=False).encodings
    first, last = token_range(encoding, text, (2, len(text)))
    assert "".join(encoding.tokens[first:last]) == f"▁Sure{END}"
    first, last = token_range(encoding, text, (1, len(text)))
    assert "".join(encoding.tokens[first:last]) == f"▁Sure{END}"
