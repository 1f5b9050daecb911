from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.data.clean.shingles import shingle_hashes

TEXT = st.text(st.sampled_from("abC 1_.!\n\t中文字かな é"), max_size=25)


def _tokens(text: str) -> list[str]:
    """What a token is, written another way."""
    return re.findall(r"[\u3000-\u9fff]|[^\W\u3000-\u9fff]+|[^\w\s]", text)


def _shingles(text: str, ngram: int) -> list[tuple[str, ...]]:
    tokens = _tokens(text)
    return [tuple(tokens[start : start + ngram]) for start in range(max(1, len(tokens) - ngram + 1))]


@given(st.lists(TEXT, min_size=1, max_size=8), st.integers(1, 4))
@settings(deadline=None)
def test_hashes_are_equal_where_the_token_runs_are(texts, ngram):
    hashes, starts = shingle_hashes(texts, ngram)
    expected = [run for text in texts for run in _shingles(text, ngram)]
    assert len(hashes) == len(expected) and starts[-1] == len(hashes)
    by_hash = dict(zip(hashes.tolist(), expected, strict=True))
    assert len(set(hashes.tolist())) == len(set(expected))
    assert all(by_hash[value] == run for value, run in zip(hashes.tolist(), expected, strict=True))
    for number, text in enumerate(texts):
        assert hashes[starts[number] : starts[number + 1]].tolist() == shingle_hashes([text], ngram)[0].tolist()


def test_chinese_is_taken_character_by_character():
    assert len(shingle_hashes(["水对人类至关重要"], 3)[0]) == 6
    assert len(shingle_hashes(["Wasser ist wichtig"], 3)[0]) == 1


def test_blank_texts_are_alike():
    assert shingle_hashes(["", " \n"], 3)[0].tolist() == [0, 0]
