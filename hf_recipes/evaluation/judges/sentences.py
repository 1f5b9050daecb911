"""Counting sentences by their marks, without a model of a language."""

from __future__ import annotations

import re

# Looked for from the first mark of a run only: from each of a million dots the search would go over all that follow.
_ENDS = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]*]*+(?=\s)|[。！？｡]+[」』”’）]*|\n\s*\n")
_TITLES = ("mr", "mrs", "ms", "dr", "prof", "sr", "jr", "st", "inc", "ltd", "co", "corp", "dept")
_SHORT = ("vs", "etc", "e.g", "i.e", "cf", "fig", "no", "vol", "approx", "est", "u.s", "u.k", "a.m", "p.m")
_ABBREVIATIONS = frozenset((*_TITLES, *_SHORT))


def sentences(text: str) -> list[str]:
    """Cut `text` after ``. ! ? …`` before white space, after their Chinese and Japanese forms, and at empty lines.

    A dot after an abbreviation or an initial ends none, and neither does one before a small letter. Parts without a
    letter or digit are no sentences.
    """
    parts, start = [], 0
    for end in _ENDS.finditer(text):
        if end[0][0] == "." and not _ends_here(text, end):
            continue
        parts.append(text[start : end.end()])
        start = end.end()
    parts.append(text[start:])
    return [part.strip() for part in parts if any(map(str.isalnum, part))]


def _ends_here(text: str, end: re.Match[str]) -> bool:
    before = text[max(0, end.start() - 20) : end.start()].split()
    word = before[-1].lstrip("(\"'“‘[").lower() if before else ""
    after = text[end.end() : end.end() + 200].lstrip()[:1]
    initial = len(word) == 1 and word.isalpha() and word != "i"
    return not (word in _ABBREVIATIONS or initial or after.islower())
