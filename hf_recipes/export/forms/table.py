"""The table of forms: what each costs and what it keeps of the model, side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_recipes.core.tables import render_table

Row = Mapping[str, Any]


def render_forms(rows: Sequence[Row]) -> str:
    """Rows of export.json as a table for the terminal; a column that no row has a value for is left out."""
    cells = form_cells(rows)
    headers = list(cells[0]) if cells else []
    return render_table(headers, [list(line.values()) for line in cells])


def form_cells(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The table's cells as text, by header; each row has the same headers, those that some row has a value for."""
    lines = [{header: _text(value(row), shape) for header, value, shape in _COLUMNS} for row in rows]
    used = [header for header, _, _ in _COLUMNS if any(line[header] for line in lines)]
    return [{header: line[header] for header in used} for line in lines]


def _text(value: Any, shape: str) -> str:
    return "" if value is None else shape.format(value)


def _at(*keys: str) -> Callable[[Row], Any]:
    def get(row: Row) -> Any:
        value: Any = row
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    return get


def _megabytes(key: str) -> Callable[[Row], Any]:
    def get(row: Row) -> Any:
        value = row.get(key)
        return None if value is None else value / 1e6

    return get


def _same_answers(row: Row) -> str | None:
    near = row.get("closeness")
    return f"{near['same_answers']}/{near['answers']}" if near else None


_COLUMNS: tuple[tuple[str, Callable[[Row], Any], str], ...] = (
    ("form", _at("name"), "{}"),
    ("MB on disk", _megabytes("size_bytes"), "{:,.0f}"),
    ("load s", _at("load_seconds"), "{:.1f}"),
    ("memory MB", _megabytes("memory_bytes"), "{:,.0f}"),
    ("ms/token", _at("ms_per_token"), "{:.0f}"),
    ("general loss", _at("general", "nats_per_token"), "{:.3f}"),
    ("JSON parses", _at("domain", "parses"), "{:.0%}"),
    ("fits schema", _at("domain", "fits_schema"), "{:.0%}"),
    ("all right", _at("domain", "exact"), "{:.0%}"),
    ("KL to merged", _at("closeness", "kl_mean"), "{:.1e}"),
    ("same answers", _same_answers, "{}"),
)
