"""Texts as sets of hashed token n-grams, many texts at once. Pure, with the same result on every machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
_SPACE, _WORD, _SIGN = 0, 1, 2
_BASE = np.uint64(0x9E3779B97F4A7C15)
# Scripts that put no spaces between words: South-East Asian ones, kana, Chinese characters.
_UNSPACED = (
    (0x0E00, 0x0EFF),
    (0x0F00, 0x109F),
    (0x1780, 0x17FF),
    (0x2E80, 0x31FF),
    (0x3400, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
)


def shingle_hashes(texts: Sequence[str], ngram: int) -> tuple[Array, Array]:
    """Hash every run of `ngram` tokens of each text.

    A token is a word (a run of letters, digits and underscores), a single character of a script without spaces between
    words, or a single sign. A text of fewer tokens than `ngram` is one shingle; a blank one is the shingle 0.

    Returns:
        uint64 array of the shingles' hashes, text after text, and int64 array (texts + 1) of where each text starts.
    """
    tokens, first = _token_hashes(texts)
    counts = np.diff(first)
    windows = np.maximum(counts - ngram + 1, 1)
    starts = np.concatenate([[0], np.cumsum(windows)])
    text_of = np.repeat(np.arange(len(texts)), windows)
    begin = np.arange(starts[-1]) - starts[text_of] + first[text_of]
    hashes = np.zeros(len(begin), np.uint64)
    padded = np.concatenate([tokens, np.zeros(ngram, np.uint64)])
    for offset in range(ngram):
        inside = begin + offset < first[text_of + 1]
        hashes = np.where(inside, _mixed(hashes + padded[begin + offset]), hashes)
    return hashes, starts


def _token_hashes(texts: Sequence[str]) -> tuple[Array, Array]:
    """Hashes of all tokens of all texts, and (texts + 1) where each text's tokens start."""
    joined = "\n".join([*texts, ""])
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    kinds = _kinds()[codes]
    begins = kinds == _SIGN
    begins[1:] |= (kinds[1:] == _WORD) & (kinds[:-1] != _WORD)
    begins[:1] |= kinds[:1] == _WORD
    places = np.flatnonzero(begins)
    ends = np.cumsum(np.fromiter((len(text) + 1 for text in texts), np.int64, len(texts)))
    first = np.concatenate([[0], np.searchsorted(places, ends)])
    if not len(places):
        return np.zeros(0, np.uint64), first
    used = np.flatnonzero(kinds)  # all but white space
    starts = np.searchsorted(used, places)
    place_in_token = used - np.repeat(places, np.diff(np.append(starts, len(used))))
    # A token's hash is a polynomial in an odd number modulo 2^64, its characters the coefficients.
    powers = np.full(int(place_in_token.max()) + 1, _BASE)
    powers[0] = 1
    terms = (codes[used] + np.uint64(1)) * np.cumprod(powers)[place_in_token]
    return _mixed(np.add.reduceat(terms, starts)), first


def _mixed(values: Array) -> Array:
    """The finalizer of MurmurHash3: a bijection of 64-bit numbers in which every bit depends on every bit."""
    values = values ^ (values >> np.uint64(33))
    values = values * np.uint64(0xFF51AFD7ED558CCD)
    values = values ^ (values >> np.uint64(33))
    values = values * np.uint64(0xC4CEB9FE1A85EC53)
    return np.asarray(values ^ (values >> np.uint64(33)))


@cache
def _kinds() -> Array:
    """The kind of every code point: 1.1 MB."""
    characters = "".join(map(chr, range(0x110000)))
    kinds = np.full(0x110000, _SIGN, np.uint8)
    for kind, pattern in ((_WORD, r"\w+"), (_SPACE, r"\s+")):
        for run in re.finditer(pattern, characters):
            kinds[run.start() : run.end()] = kind
    for start, end in _UNSPACED:
        inside = kinds[start : end + 1]
        inside[inside == _WORD] = _SIGN
    return kinds
