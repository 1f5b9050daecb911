"""The figures as text: one column a model, and a column for its difference to the reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from hf_recipes.core.tables import render_table
from hf_recipes.evaluation.bootstrap import LEAST_DIFFERING
from hf_recipes.evaluation.figures import Figure
from hf_recipes.evaluation.gate import FORGETTING
from hf_recipes.evaluation.sides import BASE, TUNED

_SHOWN: dict[str, Callable[[float], str]] = {
    "share": lambda value: f"{value:.1%}",
    "nats": lambda value: f"{value:.3f}",
    "rise": lambda value: f"{value:+.3f}",
    "number": lambda value: f"{value:.3f}",
    "tokens": lambda value: f"{value:.1f}",
    "seconds": lambda value: f"{value:.2f}",
    "milliseconds": lambda value: f"{value:.1f}",
}
SURE = "*"
WIDTH = 100  # characters of a terminal; a table that is wider is taken apart
_NOTE = f"{SURE} the 95 % interval (paired bootstrap over the rows) leaves out 0"
_FEW = f"without {SURE} though its interval leaves out 0: fewer than {LEAST_DIFFERING} rows differ"


def cell(unit: str, value: Any) -> str:
    """A value as the table has it; empty where there is none."""
    if value is None:
        return ""
    number = float(value)
    return _SHOWN[unit](number) if math.isfinite(number) else str(number)


def difference_cell(unit: str, difference: Mapping[str, Any] | None) -> str:
    """``+12.5 [+3.1, +21.9] *``: shares in points of a hundred, all else in its own unit; without the
    interval where a single row gives none."""
    if difference is None:
        return ""
    scale, digits = {"share": (100, 1), "tokens": (1, 1)}.get(unit, (1, 3))
    value, low, high = (f"{scale * float(difference[key]):+.{digits}f}" for key in ("value", "low", "high"))
    if not math.isfinite(float(difference["low"])):
        return value
    return f"{value} [{low}, {high}]{' ' + SURE if difference['sure'] else ''}"


def columns(document: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the table of an evaluation.json: the reference, then each model with its difference."""
    sides, reference = list(document["sides"]), document["reference"]
    figures = document["figures"]
    compared = [side for side in sides if any(side in each["differences"] for each in figures)]
    heads = [""]
    for side in sides:
        heads += [side, f"{side} - {reference}"] if side in compared else [side]
    return heads, [_row(each, sides, compared) for each in figures]


def _row(each: Mapping[str, Any], sides: Sequence[str], compared: Sequence[str]) -> list[str]:
    row = [each["label"]]
    for side in sides:
        row.append(cell(each["unit"], each["values"].get(side)))
        if side in compared:
            shown = None if each["name"] == FORGETTING else each["differences"].get(side)
            row.append(difference_cell(each["unit"], shown))
    return row


def two_columns(figures: Sequence[Figure]) -> list[tuple[str, str, str]]:
    """Base and tuned only, as pages and cards show them."""
    return [
        (each.label, cell(each.unit, each.values.get(BASE)), cell(each.unit, each.values.get(TUNED)))
        for each in figures
        if each.values.get(TUNED) is not None
    ]


def render_document(document: Mapping[str, Any]) -> str:
    """The table of an evaluation.json for the terminal, and what its mark means where there is one."""
    heads, rows = columns(document)
    text = render_table(heads, rows)
    if max(map(len, text.splitlines())) > WIDTH:
        text = "\n\n".join(render_table(*part) for part in _narrow(heads, rows, document["reference"]))
    notes = [_NOTE] if any(entry.endswith(SURE) for row in rows for entry in row) else []
    if any(_leaves_out_zero(each) and not each["sure"] for each in _shown_differences(document)):
        notes.append(_FEW)
    return "\n".join([text, *notes])


def _shown_differences(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for figure in document["figures"]:
        if figure["name"] != FORGETTING:
            yield from (each for each in figure["differences"].values() if each is not None)


def _leaves_out_zero(difference: Mapping[str, Any]) -> bool:
    return float(difference["low"]) > 0 or float(difference["high"]) < 0


def _narrow(
    heads: Sequence[str], rows: Sequence[Sequence[str]], reference: str
) -> Iterator[tuple[list[str], list[list[str]]]]:
    """The table in parts: first the values of all models, then the differences, as many columns at once as fit."""
    differences = [index for index, head in enumerate(heads) if index and head.endswith(f" - {reference}")]
    values = [index for index in range(1, len(heads)) if index not in differences]
    for group in (values, differences):
        for chosen in _that_fit(heads, rows, group):
            part = [[row[0], *(row[index] for index in chosen)] for row in rows]
            yield [heads[0], *(heads[index] for index in chosen)], [row for row in part if any(row[1:])]


def _that_fit(heads: Sequence[str], rows: Sequence[Sequence[str]], group: Sequence[int]) -> Iterator[list[int]]:
    """`group` in pieces no wider than `WIDTH` with the labels, of one column at least."""
    widths = [max(len(line[index]) for line in (heads, *rows)) + 2 for index in range(len(heads))]
    room = WIDTH - widths[0] + 2
    piece: list[int] = []
    for index in group:
        if piece and sum(widths[each] for each in [*piece, index]) > room:
            yield piece
            piece = []
        piece.append(index)
    if piece:
        yield piece
