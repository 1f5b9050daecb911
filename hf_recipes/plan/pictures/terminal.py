"""A plan for a terminal: tables and bars of characters. Pure: a view in, text out."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, zip_longest

from hf_recipes.core.escape import plain
from hf_recipes.core.tables import render_table
from hf_recipes.plan.pictures import words
from hf_recipes.plan.pictures.axes import Axis, memory_axis
from hf_recipes.plan.pictures.data import MemoryBar, PlanView
from hf_recipes.plan.pictures.edge import fitting, largest_fitting
from hf_recipes.plan.pictures.parts import parts_of

BLOCKS, PLAIN_BLOCKS = ("█", "│"), ("#", "|")  # memory, and the limit of the device
_NARROWEST, _WIDE, _WIDEST = 80, 100, 120
_SHORTEST_NAME = 10
_SHORT_BAR = 20


def render(view: PlanView, width: int | None = None, blocks: tuple[str, str] = BLOCKS) -> str:
    """A plan as text.

    Args:
        view: the plan.
        width: columns, held between 80 and 120; by default the terminal's.
        blocks: the characters of a bar and of the device's limit; `PLAIN_BLOCKS` where the terminal has no others.
    """
    width = min(max(width or shutil.get_terminal_size((110, 24)).columns, _NARROWEST), _WIDEST)
    sections = [
        ("Parameters by part", _parameters(view)),
        (_memory_title(view), _memory(view, width, blocks)),
        ("Strategies side by side", _strategies(view, width, blocks)),
        ("Not taken, and why", _named(view.not_taken, width)),
        ("Devices side by side, memory in GiB", _devices(view, width)),
        ("Memory over row length and micro-batch, GiB (× does not fit, * this plan)", _grid(view, width)),
        ("Notes", [line for note in (*_unit(view), *view.notes) for line in _wrapped(note, width)]),
    ]
    told = ["\n".join([f"== {title} ==", *lines]) for title, lines in sections if lines]
    return "\n\n".join(["\n".join(_head(view, width)), *told])


def _head(view: PlanView, width: int) -> list[str]:
    title = _wrapped(view.title, width)
    facts = _named(view.facts.items(), width)
    underline = "=" * max(map(len, title), default=0)
    return [*title, underline, *_wrapped(view.sentence, width), *([""] if facts else []), *facts]


def _unit(view: PlanView) -> list[str]:
    return [words.UNIT] if view.bars or view.devices or view.grid else []


def _parameters(view: PlanView) -> list[str]:
    whole = sum(view.parameters.values())
    rows = [(part, count) for part, count in view.parameters.items() if count > 0]
    told = [(_part(part), f"{count:,}", words.share(count, whole)) for part, count in (*rows, ("all", whole))]
    return _lines(["part", "parameters", "share"], told) if rows else []


def _memory_title(view: PlanView) -> str:
    bar = view.shown_bar
    return f"Memory of one device at its peak, {_part(bar.phase)}" if bar else ""


def _memory(view: PlanView, width: int, blocks: tuple[str, str]) -> list[str]:
    """The parts of one bar, each drawn where the one before ends, against the device's limit."""
    bar = view.shown_bar
    if bar is None:
        return []
    parts, limit = parts_of([bar]), view.limit_bytes
    axis = memory_axis(limit, [bar.total])
    columns = min(width - max(map(len, ["fragmentation", *map(_part, parts)])) - 28, 60)
    pieces, below = [], 0.0
    for part in parts:
        pieces.append((_part(part), below, below + bar.parts[part]))
        below += bar.parts[part]
    rows = [
        (
            name,
            words.gib(end - start, 2),
            words.share(end - start, limit),
            _drawn(axis, start, end, limit, columns, blocks),
        )
        for name, start, end in (*pieces, ("total", 0.0, bar.total))
    ]
    table = _lines(["part", "GiB", "of limit", f"{blocks[1]} = limit"], rows)
    return [*_wrapped(bar.label, width), *table, *_wrapped(_room(view, bar), width)]


def _room(view: PlanView, bar: MemoryBar) -> str:
    """What stays free or is missing, in a sentence."""
    room = view.limit_bytes - bar.total
    told = f"{view.device} leaves a job {words.gib(view.limit_bytes, 2)} GiB: " + (
        f"{words.gib(room, 2)} GiB stay free." if room >= 0 else f"{words.gib(-room, 2)} GiB are missing."
    )
    if not bar.host_bytes:
        return told
    return f"{told} Besides, each rank keeps {words.gib(bar.host_bytes, 2)} GiB in the machine's own memory."


def _drawn(axis: Axis, start: float, end: float, limit: float, columns: int, blocks: tuple[str, str]) -> str:
    """A bar from `start` to `end`, at least one character, with the limit behind it; ``>`` where it goes on beyond."""
    first, last = (round(axis.place(value) * columns) for value in (start, end))
    first = min(first, columns - 1)
    cells = [" "] * (columns + 1)
    cells[round(axis.place(limit) * columns)] = blocks[1]
    cells[first : max(last, first + 1)] = blocks[0] * max(last - first, 1)
    if end > axis.end:
        cells[columns] = ">"
    return "".join(cells).rstrip()


def _strategies(view: PlanView, width: int, blocks: tuple[str, str]) -> list[str]:
    """All bars, the chosen first; nothing where there is but the one told in detail."""
    if len(view.bars) < 2:
        return []
    axis = memory_axis(view.limit_bytes, [bar.total for bar in view.bars])
    hosts = any(bar.host_bytes for bar in view.bars)
    headers = ["strategy", "GiB", *(["host GiB"] if hosts else []), "fits", "peak", f"{blocks[1]} = limit"]
    rows = []
    for bar in view.bars:
        drawn = _drawn(axis, 0.0, bar.total, view.limit_bytes, _SHORT_BAR, blocks)
        host = [words.gib(bar.host_bytes) if bar.host_bytes else ""] if hosts else []
        fits = "no" if not bar.fits_in(view.limit_bytes) else "chosen" if bar.chosen else "yes"
        rows.append([plain(bar.label), words.gib(bar.total), *host, fits, _part(bar.phase), drawn])
    return _table(headers, rows, {0: 1.0}, width)


def _devices(view: PlanView, width: int) -> list[str]:
    """A row a kind of device, then why; on a narrow terminal the strategy stands with the reasons."""
    rows, wide = view.devices, width >= _WIDE
    if not rows:
        return []
    hours = [words.band(row.hours, words.short) if row.hours else ("", "") for row in rows]
    costs = [words.band(row.cost, words.price) if row.cost else ("", "") for row in rows]
    strategies = [plain(row.strategy) if row.fitting else "does not fit" for row in rows]
    columns = [
        ("device", [plain(row.device) for row in rows]),
        ("n", [str(row.devices) for row in rows]),
        ("strategy", strategies) if wide else ("fits", ["yes" if row.fitting else "no" for row in rows]),
        ("needs", [words.gib(row.needed_bytes) for row in rows]),
        ("has", [words.gib(row.memory_bytes) for row in rows]),
        ("hours", [expected for expected, _ in hours]),
        ("from–to", [reach for _, reach in hours]),
        (plain(view.currency), [expected for expected, _ in costs]),
        ("from–to", [reach for _, reach in costs]),
        ("kWh", ["" if row.kwh is None else words.short(row.kwh) for row in rows]),
    ]
    headers, *table = zip(*([header, *cells] for header, cells in columns if any(cells)), strict=True)
    whys = [row.why if wide or not row.fitting else f"{row.strategy}: {row.why}".removesuffix(": ") for row in rows]
    reasons = [(plain(row.device), why) for row, why in zip(rows, whys, strict=True) if why]
    return [*_table(headers, table, {0: 0.5, 2: 0.5} if wide else {0: 1.0}, width), *_named(reasons, width)]


def _grid(view: PlanView, width: int) -> list[str]:
    """A row a length; the last column is the edge of fitting in a number."""
    grid = view.grid
    if grid is None:
        return []
    fits, largest = fitting(grid, view.limit_bytes), largest_fitting(grid, view.limit_bytes)
    columns = [["tokens", *(f"{tokens:,}" for tokens in grid.tokens)]]
    for place, size in enumerate(grid.micro_batches):
        marks = (
            ("" if row[place] else "×") + ("*" if grid.chosen == (tokens, size) else "")
            for tokens, row in zip(grid.tokens, fits, strict=True)
        )
        needed = (words.gib(row[place]) for row in grid.needed_bytes)
        columns.append([f"batch {size}", *(f"{cell}{mark:<2}" for cell, mark in zip(needed, marks, strict=True))])
    edge = ["largest that fits", *("none" if most is None else str(most) for most in largest)]
    reach = list(accumulate(2 + max(map(len, column)) for column in columns))
    shown = max(sum(end + len(edge[0]) <= width for end in reach), 2)
    headers, *rows = zip(*columns[:shown], edge, strict=True)
    left_out = ", ".join(map(str, grid.micro_batches[shown - 1 :]))
    return [*_lines(headers, rows), *([f"Micro-batches without room here: {left_out}."] if left_out else [])]


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], shares: Mapping[int, float], width: int) -> list[str]:
    """A table at most `width` wide: the columns in `shares` divide what the others leave and wrap their words."""
    taken = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    room = width - sum(size for column, size in enumerate(taken) if column not in shares) - 2 * (len(taken) - 1)
    widths = {column: max(int(room * share), _SHORTEST_NAME) for column, share in shares.items()}
    spare = sum(max(widths[column] - taken[column], 0) for column in shares)  # what one does not need, others may take
    broken: list[tuple[str, ...]] = []
    for row in rows:
        cells = [
            _wrapped(cell, widths[column] + spare) or [""] if column in shares else [cell]
            for column, cell in enumerate(row)
        ]
        broken += zip_longest(*cells, fillvalue="")
    return _lines(headers, broken)


def _lines(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return render_table(headers, rows).splitlines()


def _named(pairs: Iterable[tuple[str, str]], width: int) -> list[str]:
    """A name and what is said of it: beside each other where names are short, else one after the other."""
    told = [(plain(name), plain(text)) for name, text in pairs]
    longest = max((len(name) for name, _ in told), default=0)
    if longest > width // 3:
        return [line for name, text in told for line in _wrapped(f"{name}: {text}", width, hanging="  ")]
    beside = " " * (longest + 2)
    return [
        f"{name:<{longest}}  {line}".rstrip() if place == 0 else beside + line
        for name, text in told
        for place, line in enumerate(_wrapped(text, width - len(beside)) or [""])
    ]


def _wrapped(text: str, width: int, hanging: str = "") -> list[str]:
    return textwrap.wrap(plain(text), width, subsequent_indent=hanging, break_on_hyphens=False)


def _part(key: str) -> str:
    return plain(words.words(key))
