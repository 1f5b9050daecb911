"""Parts of Markdown whose characters mean themselves: code fences, inline code, table rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_FENCE = r"^[ \t>]*(?P<fence>`{3,}|~{3,})[^`\n]*\n(?:.*\n)*?[ \t>]*(?P=fence)[`~]*[ \t]*$"
_OPEN_FENCE = r"^[ \t>]*(?:`{3,}|~{3,})[^`\n]*\n(?:.*\n?)*\Z"  # one that is never closed runs to the end
_TABLE_ROW = r"^[ \t]*\|.*\|[ \t]*$"  # a line break written <br> is right there
# Backticks inside HTML's own code elements are characters of that code.
_HTML_CODE = r"(?<!`)<(?P<element>pre|code)\b[^<>]*>[\s\S]*?</(?P=element)\s*>"
_BLOCK = re.compile(f"{_FENCE}|{_OPEN_FENCE}|{_TABLE_ROW}|{_HTML_CODE}", re.MULTILINE)
_TICKS_OR_BLANK_LINE = re.compile(r"`+|\n[ \t]*\n")
_MARKS = tuple(chr(code) for code in range(0xF0000, 0xF0010))  # private use, plane 15


def hide_code(text: str) -> tuple[str, Callable[[str], str]]:
    """Put a mark in the place of each literal part.

    Returns:
        the text with marks, and a function that puts the parts back in whatever became of it.
    """
    if not any(sign in text for sign in ("`", "~~~", "|")):
        return text, lambda changed: changed
    mark = next(mark for mark in _MARKS if mark not in text)
    parts: list[str] = []
    pieces, done = [], 0
    for start, end in _literal_spans(text):
        pieces += [text[done:start], f"{mark}{len(parts)}{mark}"]
        parts.append(text[start:end])
        done = end

    def put_back(changed: str) -> str:
        return re.sub(f"{mark}(\\d+){mark}", lambda match: parts[int(match[1])], changed)

    return "".join([*pieces, text[done:]]), put_back


def _literal_spans(text: str) -> Iterator[tuple[int, int]]:
    done = 0
    for block in _BLOCK.finditer(text):
        yield from _inline_spans(text, done, block.start())
        if not block["element"]:
            yield block.span()
        done = block.end()
    yield from _inline_spans(text, done, len(text))


def _inline_spans(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Inline code: from a run of backticks to the next one of the same length in its paragraph (CommonMark 6.1)."""
    runs = [match.span() for match in _TICKS_OR_BLANK_LINE.finditer(text, start, end)]
    closer: dict[int, int] = {}
    latest: dict[int, int] = {}  # length of a run → its nearest place to the right
    for index in range(len(runs) - 1, -1, -1):
        first, last = runs[index]
        if text[first] != "`":
            latest.clear()
            continue
        if last - first in latest:
            closer[index] = latest[last - first]
        latest[last - first] = index
    index = 0
    while index < len(runs):
        if index in closer:
            yield runs[index][0], runs[closer[index]][1]
            index = closer[index]
        index += 1
