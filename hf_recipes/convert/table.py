"""What became of every key, for the screen and for machines."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

from hf_recipes.convert.engine import Conversion, Row, show
from hf_recipes.convert.recipe_text import yaml_value
from hf_recipes.core.tables import render_table

_LONGEST = 56
_COLUMNS = 118


def conversion_text(conversion: Conversion) -> str:
    """The tables: theirs and ours, what needs no key, what has no counterpart, what was written down besides."""
    title = conversion.tool.title
    taken = conversion.of_kind("taken")
    blocks = [_taken_table(title, taken)] if taken else []
    for heading, rows in (
        ("Holds without a key:", conversion.of_kind("same")),
        ("No counterpart:", conversion.of_kind("none")),
        ("Unknown:", conversion.of_kind("unknown")),
    ):
        if rows:
            blocks.append("\n".join([heading, *(_line(_theirs(row), row.note) for row in rows)]))
    if conversion.defaults:
        heading = f"What {title} does by itself and ours would not, written down where a key can say it:"
        lines = [_line(_ours(default.recipe) or "(no key)", default.note) for default in conversion.defaults]
        blocks.append("\n".join([heading, *lines]))
    blocks.append(_count(conversion))
    return "\n\n".join(blocks)


def conversion_json(conversion: Conversion, written: str) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "from": conversion.tool.name,
        "written": written,
        "recipe": conversion.values,
        "keys": [
            {"key": row.key, "value": row.value, "became": row.kind, "recipe": dict(row.recipe), "note": row.note}
            for row in conversion.rows
        ],
        "defaults": [{"recipe": dict(default.recipe), "note": default.note} for default in conversion.defaults],
    }


def _taken_table(title: str, rows: list[Row]) -> str:
    """Theirs beside ours, each note on a line of its own below."""
    head, rule, *lines = render_table((title, "recipe"), [(_theirs(row), _ours(row.recipe)) for row in rows]).split(
        "\n"
    )
    for index, row in enumerate(rows):
        if row.note:
            lines[index] += "\n" + textwrap.fill(row.note, _COLUMNS, initial_indent="    ", subsequent_indent="    ")
    return "\n".join([head, rule, *lines])


def _theirs(row: Row) -> str:
    return _short(f"{row.key} = {' '.join(show(row.value).split())}")


def _ours(recipe: Mapping[str, Any]) -> str:
    return _short(", ".join(f"{key} = {yaml_value(value)}" for key, value in recipe.items()))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _line(what: str, note: str) -> str:
    """One entry, its note wrapped under itself."""
    first = f"  {what}: "
    return "\n".join(
        textwrap.wrap(note, _COLUMNS, initial_indent=first, subsequent_indent="      ", break_long_words=False)
    )


def _count(conversion: Conversion) -> str:
    numbers = {kind: len(conversion.of_kind(kind)) for kind in ("taken", "same", "none", "unknown")}
    added = sum(1 for default in conversion.defaults if default.recipe)
    return (
        f"{len(conversion.rows)} keys: {numbers['taken']} taken over, {numbers['same']} hold without a key, "
        f"{numbers['none']} without a counterpart, {numbers['unknown']} unknown; {added} written down besides."
    )
