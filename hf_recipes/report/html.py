"""What JSON files hold → HTML fragments. Everything foreign passes through `text`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hf_recipes.core.escape import text
from hf_recipes.core.html import facts, folded, table
from hf_recipes.report.scale import NOTHING, number

_DEEPEST = 4  # nested tables beyond this are shown as JSON
ABSENT = f'<span class="absent">{NOTHING}</span>'


def value(item: Any, depth: int = 0) -> str:
    """Any JSON value as HTML: scalars as text, short lists in one line, mappings as facts, lists of rows as a table."""
    if item is None or item == "" or item == [] or item == {}:
        return ABSENT
    if isinstance(item, float):
        return number(item)
    if isinstance(item, bool):
        return "yes" if item else "no"
    if not isinstance(item, (dict, list)):
        return text(item)
    if depth >= _DEEPEST:
        return f"<code>{text(json.dumps(item, ensure_ascii=False))}</code>"
    if isinstance(item, dict):
        if depth and not any(isinstance(inner, (dict, list)) for inner in item.values()):
            return inline(item)
        return facts((words(key), value(inner, depth + 1)) for key, inner in item.items())
    if all(isinstance(inner, dict) for inner in item):
        return records(item, depth + 1)
    return ", ".join(value(inner, depth + 1) for inner in item)


def inline(item: Mapping[str, Any]) -> str:
    """A mapping in one line: names and values, without the empty ones."""
    return ", ".join(f"{text(words(key))} {value(inner, 1)}" for key, inner in item.items() if inner not in (None, ""))


def words(key: object) -> str:
    """A key as words."""
    return str(key).replace("_", " ")


def records(rows: Sequence[Mapping[str, Any]], depth: int = 0) -> str:
    """A table of mappings; the columns are their keys in order of first sight, nested values fold away."""
    columns = list(dict.fromkeys(str(key) for row in rows for key in row))
    return table(
        [words(column) for column in columns],
        ([_cell(row.get(column), depth) for column in columns] for row in rows),
    )


def _cell(item: Any, depth: int) -> str:
    if isinstance(item, (dict, list)) and item:
        return folded(_brief(item), value(item, depth + 1))
    return value(item, depth)


def _brief(item: dict[str, Any] | list[Any]) -> str:
    """A nested value in a few words; a mapping of reasons to counts says its counts."""
    if isinstance(item, dict) and all(isinstance(inner, dict) and "count" in inner for inner in item.values()):
        return "; ".join(f"{inner['count']} × {reason}" for reason, inner in item.items())
    kind = "entry" if len(item) == 1 else "entries"
    return f"{len(item)} {kind}"


def answer(prompt: Any, cards: Sequence[str]) -> str:
    """A question, of a conversation its last turn, above its answers side by side."""
    last = prompt[-1] if isinstance(prompt, list) and prompt else None
    question = last.get("content") if isinstance(last, dict) else prompt
    return (
        f'<article class="answer"><p class="prompt">{text(question)}</p>'
        f'<div class="sides">{"".join(cards)}</div></article>'
    )


def answer_card(name: str, content: Any, mark: str = "") -> str:
    """One answer under its name; `mark` is HTML."""
    return f"<div><h4>{text(name)}{mark}</h4><pre>{text(content)}</pre></div>"
