"""A plan as one PNG, for places where no HTML goes: memory by part, time and cost, length × micro-batch."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hf_recipes.core.escape import plain
from hf_recipes.core.figures import new_figure, save_figure
from hf_recipes.plan.pictures import words
from hf_recipes.plan.pictures.axes import Axis, band_axis, memory_axis
from hf_recipes.plan.pictures.data import DeviceRow, LengthGrid, PlanView
from hf_recipes.plan.pictures.edge import edge, fitting
from hf_recipes.plan.pictures.parts import colours, ink_on, parts_of

_WIDTH, _HEAD, _PANEL, _ROW = 11.0, 0.9, 1.25, 0.46  # inches: a head, and panels of a frame and rows
_NAME, _NAME_LINES = 34, 3  # characters and lines of a name beside a panel
_KEYS = 10  # of a legend in one line
_INK, _QUIET, _BAD, _BAR, _BEYOND = "#1b1f24", "#606a76", "#c62828", "#9fd3f2", "#f6ddcb"
_LABELLED = 0.06  # share of the width from which on a part's figure has room inside it


def write_png(view: PlanView, file: Path) -> Path:
    """Draw a plan into a PNG 1,320 dots wide, and return its path.

    Raises:
        OSError: of the file system.
    """
    panels: list[tuple[float, Callable[[Any], None]]] = []
    if view.bars:
        panels.append((_PANEL + _ROW * (len(view.bars) + 1), partial(_memory, view)))
    if view.devices:
        panels.append((_PANEL + _ROW * len(view.devices), partial(_devices, view.devices, view.currency)))
    if view.grid:
        panels.append((_PANEL + _ROW * len(view.grid.tokens), partial(_grid, view.grid, view.limit_bytes)))
    figure = new_figure(_WIDTH, _HEAD + sum(height for height, _ in panels))
    told = "\n".join([*_lines(view.title, 100, 2), *_lines(view.sentence, 120, 3)])
    figure.suptitle(told, fontsize=11, color=_INK, parse_math=False)
    if panels:
        parts = figure.subfigures(len(panels), 1, height_ratios=[height for height, _ in panels], squeeze=False)
        for (_, draw), part in zip(panels, parts[:, 0], strict=True):
            draw(part)
    save_figure(figure, file)
    return file


def _memory(view: PlanView, part: Any) -> None:
    """Stacked bars, the first on top, and the device's limit as a line."""
    axes = part.add_subplot()
    shown = parts_of(view.bars)
    paint = colours(shown)
    limit = view.limit_bytes / words.GIB
    axis = memory_axis(limit, [bar.total / words.GIB for bar in view.bars])
    for row, bar in enumerate(view.bars):
        below = 0.0
        for name in shown:
            size = bar.parts.get(name, 0.0) / words.GIB
            _piece(axes, axis, row, below, size, paint[name])
            below += size
        fits = bar.fits_in(view.limit_bytes)
        told = f"{words.gib(bar.total)}\n{'fits' if fits else 'does not fit'}"
        axes.text(
            1.01, row, told, transform=axes.get_yaxis_transform(), va="center", color=_INK if fits else _BAD, fontsize=9
        )
        if below > axis.end:
            axes.text(axis.end, row, "›", va="center", ha="right", fontsize=14, color=_INK)
    axes.axvline(limit, color=_INK, linestyle="--", linewidth=2)
    names = [f"{bar.label}{' (chosen)' if bar.chosen else ''}" for bar in view.bars]
    _frame(
        axes,
        axis,
        names,
        f"Memory of one device at its peak, GiB (dashed: {plain(view.device)}, {words.gib(view.limit_bytes)})",
    )
    for label_text, bar in zip(axes.get_yticklabels(), view.bars, strict=True):
        label_text.set_fontweight("bold" if bar.chosen else "normal")
    _legend(part, shown, paint)


def _piece(axes: Any, axis: Axis, row: int, below: float, size: float, colour: str) -> None:
    if size <= 0:
        return
    axes.barh(row, size, left=below, height=0.62, color=colour, edgecolor="white", linewidth=0.8)
    start, end = axis.place(below), axis.place(below + size)
    if end - start >= _LABELLED:
        middle = (start + end) / 2 * axis.end
        axes.text(middle, row, f"{size:.1f}", ha="center", va="center", fontsize=8, color=ink_on(colour))


def _legend(part: Any, shown: Sequence[str], paint: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    keys = [Patch(color=paint[name], label=plain(words.words(name)).replace("$", r"\$")) for name in shown]
    columns = len(keys) if len(keys) <= _KEYS else -(-len(keys) // 2)
    part.legend(handles=keys, ncols=columns, loc="outside upper center", fontsize=8, frameon=False, handlelength=1)


def _devices(devices: Sequence[DeviceRow], currency: str, part: Any) -> None:
    """Hours, and costs where any are known, side by side."""
    costs = [row.cost for row in devices if row.cost]
    panels = part.subplots(1, 2 if costs else 1, squeeze=False, sharey=True)[0]
    _hours(devices, panels[0])
    if not costs:
        return
    axis = band_axis(costs)
    _frame(panels[1], axis, None, f"Cost, {plain(currency)}{' (logarithmic)' if axis.log else ''}")
    for number, row in enumerate(devices):
        if row.cost:
            _band(panels[1], axis, number, row.cost, words.banded(row.cost, words.price))
        elif row.fitting:
            _say(panels[1], number, "no price known", _QUIET)


def _hours(devices: Sequence[DeviceRow], axes: Any) -> None:
    """Bands of hours, or whether it fits where there are none."""
    bands = [row.hours for row in devices if row.hours]
    axis = band_axis(bands)
    title = f"Hours{' (logarithmic)' if axis.log else ''}" if bands else "Kinds of device"
    _frame(axes, axis, [f"{row.devices} × {row.device}" for row in devices], title)
    for number, row in enumerate(devices):
        needs = f"needs {words.gib(row.needed_bytes)} GiB, has {words.gib(row.memory_bytes)}"
        if not row.fitting:
            _say(axes, number, f"does not fit: {needs}", _BAD)
        elif row.hours is None:
            _say(axes, number, f"fits: {needs}", _INK)
        else:
            _band(axes, axis, number, row.hours, words.banded(row.hours, words.short))
    if not bands:
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)


def _say(axes: Any, row: int, told: str, colour: str) -> None:
    """A sentence where there is no bar."""
    axes.text(0.01, row, told, transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=colour)


def _band(axes: Any, axis: Axis, row: int, values: words.Band, told: str) -> None:
    """A bar from 0 (on a linear axis), an error bar from low to high, and the figures where there is room."""
    low, expected, high = values
    if not axis.log:
        axes.barh(row, expected, height=0.5, color=_BAR)
    axes.errorbar(
        expected,
        row,
        xerr=[[expected - low], [high - expected]],
        fmt="o",
        color=_INK,
        markersize=5,
        capsize=4,
        linewidth=1.5,
    )
    if axis.place(high) < 0.6:
        where = {"xy": (high, row), "xytext": (8, 0), "ha": "left", "va": "center"}
    elif axis.place(low) > 0.35:
        where = {"xy": (low, row), "xytext": (-8, 0), "ha": "right", "va": "center"}
    else:
        where = {"xy": (expected, row), "xytext": (0, 6), "ha": "center", "va": "bottom"}
    axes.annotate(told, **where, textcoords="offset points", fontsize=9, color=_INK, parse_math=False)


def _grid(grid: LengthGrid, limit: float, part: Any) -> None:
    """A heat map of what fits, hatched where nothing does, with the edge between them as a line."""
    from matplotlib.collections import LineCollection
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.patches import Rectangle

    axes = part.add_subplot()
    fits = fitting(grid, limit)
    shades = LinearSegmentedColormap.from_list("needed", ["#e8f2f9", "#66aad1"])
    for y, (tokens, row) in enumerate(zip(grid.tokens, grid.needed_bytes, strict=True)):
        for x, (size, needed) in enumerate(zip(grid.micro_batches, row, strict=True)):
            look = (
                {"facecolor": shades(needed / limit if limit else 0.0)}
                if fits[y][x]
                else {"facecolor": _BEYOND, "hatch": "///"}
            )
            axes.add_patch(Rectangle((x, y), 1, 1, edgecolor="white", linewidth=1, **look))
            here = grid.chosen == (tokens, size)
            frame = {"boxstyle": "round", "facecolor": "none", "edgecolor": _INK} if here else None
            told = words.gib(needed)
            axes.text(x + 0.5, y + 0.5, told, ha="center", va="center", fontsize=9, color=_INK, bbox=frame)
    axes.add_collection(LineCollection(edge(fits), colors=_INK, linewidths=3, capstyle="projecting"))
    axes.set(
        xlim=(0, len(grid.micro_batches)), ylim=(0, len(grid.tokens)), xlabel="micro-batch", ylabel="tokens in a row"
    )
    axes.set_xticks([x + 0.5 for x in range(len(grid.micro_batches))], [f"{size:,}" for size in grid.micro_batches])
    axes.set_yticks([y + 0.5 for y in range(len(grid.tokens))], [f"{tokens:,}" for tokens in grid.tokens])
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    marked = ", framed: this plan" if grid.chosen else ""
    _title(axes, f"Memory over length and micro-batch, GiB (hatched: does not fit{marked})")


def _frame(axes: Any, axis: Axis, names: Sequence[str] | None, title: str) -> None:
    """Rows from top to bottom under a title; without `names` those of the panel beside it."""
    if axis.log:
        axes.set_xscale("log")
    axes.set_xlim(axis.start, axis.end)
    axes.set_xticks(axis.ticks, [f"{tick:,g}" for tick in axis.ticks])
    axes.set_xticks([], minor=True)
    if names is not None:
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), ["\n".join(_lines(name, _NAME, _NAME_LINES)) for name in names])
        for label in axes.get_yticklabels():
            label.set_parse_math(False)
            label.set_fontsize(8)
    axes.tick_params(length=0)
    axes.tick_params(axis="x", labelsize=9)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    _title(axes, title)


def _title(axes: Any, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10, color=_INK, parse_math=False)


def _lines(text: str, width: int, most: int) -> list[str]:
    return textwrap.wrap(plain(text), width, max_lines=most, placeholder=" …", break_on_hyphens=False)
