"""Parts of Markdown whose characters mean themselves: code fences, inline code, table rows."""

from __future__ import annotations

import re
from collections.abc import Callable

_FENCE = r"^[ \t>]*(?P<fence>`{3,}|~{3,})[^`\n]*\n(?:.*\n)*?[ \t>]*(?P=fence)[`~]*[ \t]*$"
_OPEN_FENCE = r"^[ \t>]*(?:`{3,}|~{3,})[^`\n]*\n(?:.*\n?)*\Z"  # one that is never closed runs to the end
_INLINE = r"(?<!`)(?P<ticks>`+)(?!`)(?:(?!\n[ \t]*\n)[\s\S])+?(?<!`)(?P=ticks)(?!`)"
_TABLE_ROW = r"^[ \t]*\|.*\|[ \t]*$"  # a line break written <br> is right there
# Backticks inside HTML's own code elements are characters of that code.
_HTML_CODE = r"<(?P<element>pre|code)\b[^<>]*>[\s\S]*?</(?P=element)\s*>"
_LITERAL = re.compile(f"{_FENCE}|{_OPEN_FENCE}|{_INLINE}|{_TABLE_ROW}|{_HTML_CODE}", re.MULTILINE)
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

    def hide(match: re.Match[str]) -> str:
        if match["element"]:
            return match[0]
        parts.append(match[0])
        return f"{mark}{len(parts) - 1}{mark}"

    def put_back(changed: str) -> str:
        return re.sub(f"{mark}(\\d+){mark}", lambda match: parts[int(match[1])], changed)

    return _LITERAL.sub(hide, text), put_back
