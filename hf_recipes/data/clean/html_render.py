"""A parsed HTML tree as plain text. Walks selectolax nodes without recursion, since real pages nest without limit."""

from __future__ import annotations

import re
from typing import Any

from hf_recipes.data.clean.html_elements import CODE, CONTAINERS, DROPPED, LINES, PARAGRAPHS

_SCRIPTS = {
    "sup": ("^", dict(zip("0123456789+-=()ni", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", strict=True))),
    "sub": ("_", dict(zip("0123456789+-=()", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", strict=True))),
}
# Marks in the text under construction, from private use plane 16: end of a line, of a paragraph, and <br>.
_LINE, _PARAGRAPH, _BR = "\U00100000", "\U00100001", "\U00100002"
_BREAKS = re.compile(f"[ \t\n]*[{_LINE}{_PARAGRAPH}{_BR}][ \t\n{_LINE}{_PARAGRAPH}{_BR}]*")
_BLANK_LINES = re.compile(r"[ \t\r\f]*\n[ \t\r\f]*\n\s*")
_LINE_BREAK = re.compile(r"[ \t\r\f]*\n[ \t\r\f]*")
_SPACES = re.compile(r"[ \t\r\f]+")


def render(root: Any) -> str:
    """The text of all that `root`, a selectolax node, contains.

    Block elements become lines or paragraphs, list items begin with ``- `` or their number, table cells are parted by
    ``|``, ``<code>`` becomes inline code and ``<pre>`` a code fence with their characters kept, ``<sup>`` and ``<sub>``
    become Unicode or ``^`` and ``_``. Scripts, styles and comments are left out. White space is kept in text that
    stands in `root` itself, and folded, line breaks kept, inside elements.
    """
    parts: list[str] = []
    node = root.first_child
    while node is not None:
        within = _enter(node, root, parts)
        if within and node.first_child is not None:
            node = node.first_child
            continue
        if within:
            _leave(node, parts)
        while node.next is None:
            node = node.parent
            if node is None or node.mem_id == root.mem_id:  # == would compare the HTML of both
                return _joined(parts)
            _leave(node, parts)
        node = node.next
    return _joined(parts)


def _enter(node: Any, root: Any, parts: list[str]) -> bool:
    """Write what an element begins with, or all of it; returns whether what it contains is still to be written."""
    tag = node.tag
    if node.is_text_node:
        parts.append(_text(node.text_content or "", node.parent, root))
        return False
    if not node.is_element_node or tag in DROPPED:
        return False
    if tag == "br":
        parts.append(_BR)
        return False
    if tag == "pre" or tag in CODE:
        parts.append(_code(node.text(), is_block=tag == "pre"))
        return False
    if tag in _SCRIPTS:
        parts.append(_script(node.text().strip(), *_SCRIPTS[tag]))
        return False
    parts.append(_break_of(tag))
    if tag == "li":
        parts.append(_bullet(node))
    elif tag in ("td", "th") and _element_before(node) in ("td", "th"):
        parts.append(" | ")
    return True


def _leave(node: Any, parts: list[str]) -> None:
    parts.append(_break_of(node.tag))


def _break_of(tag: str) -> str:
    return _PARAGRAPH if tag in PARAGRAPHS else _LINE if tag in LINES else ""


def _text(text: str, parent: Any, root: Any) -> str:
    if parent.mem_id == root.mem_id:
        return text
    if parent.tag in CONTAINERS and not text.strip():
        return ""
    return _SPACES.sub(" ", _LINE_BREAK.sub("\n", _BLANK_LINES.sub("\n\n", text)))


def _code(text: str, is_block: bool) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    if is_block or "\n\n" in text:
        fence = "`" * max(3, longest + 1)
        return f"{_PARAGRAPH}{fence}\n{text.rstrip()}\n{fence}{_PARAGRAPH}" if text.strip() else ""
    ticks = "`" * (longest + 1)
    space = " " if "`" in (text[:1], text[-1:]) else ""
    return f"{ticks}{space}{text}{space}{ticks}" if text.strip() else text


def _script(text: str, sign: str, table: dict[str, str]) -> str:
    if all(character in table for character in text):
        return "".join(table[character] for character in text)
    return f"{sign}{text}" if len(text) == 1 else f"{sign}({text})"


def _element_before(node: Any) -> str:
    node = node.prev
    while node is not None and not node.is_element_node:
        node = node.prev
    return "" if node is None else str(node.tag)


def _bullet(node: Any) -> str:
    if node.parent.tag != "ol":
        return "- "
    number, before = 1, node.prev
    while before is not None:
        number += before.tag == "li"
        before = before.prev
    return f"{number}. "


def _joined(parts: list[str]) -> str:
    text = "".join(parts)

    def line_breaks(run: re.Match[str]) -> str:
        if run.start() == 0 or run.end() == len(text):
            return ""
        asked = 2 if _PARAGRAPH in run[0] else int(_LINE in run[0])
        return "\n" * min(2, max(asked, run[0].count(_BR), run[0].count("\n")))

    return _BREAKS.sub(line_breaks, text)
