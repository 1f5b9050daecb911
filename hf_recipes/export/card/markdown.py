"""Markdown from text that others wrote: it shows as text, whatever is in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hf_recipes.core.printable import printable


def plain(value: Any) -> str:
    """One line of text without markup; the pipe of a table included."""
    text = printable(" ".join(str(value).split()))
    for mark in "\\`*_[]|":
        text = text.replace(mark, f"\\{mark}")
    return text.replace("<", "&lt;").replace(">", "&gt;")


def code(value: Any) -> str:
    """One line in backticks."""
    text = printable(" ".join(str(value).split())).replace("`", "'").replace("|", "\\|")
    return f"`{text}`" if text else ""


def number(value: Any) -> str:
    """Counts with thousands separated, others to four figures; whatever else as text."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return plain(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: int = 1) -> str:
    """A table of ready cells; columns from `right` on are numbers."""
    rule = ["---" if index < right else "---:" for index in range(len(head))]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(cell or " " for cell in line) + " |" for line in lines)
