"""Memory by part, stacked for each strategy against the device's limit, as HTML without scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_recipes.core.escape import text
from hf_recipes.core.html import table
from hf_recipes.plan.pictures import words
from hf_recipes.plan.pictures.axes import Axis, memory_axis
from hf_recipes.plan.pictures.data import MemoryBar, PlanView
from hf_recipes.plan.pictures.parts import colours, ink_on, parts_of

_LABELLED = 0.07  # share of the width from which on a part's figure has room inside it


def memory_figure(view: PlanView) -> str:
    """The stacked bars under a legend, and the same numbers as a table."""
    parts = parts_of(view.bars)
    paint = colours(parts)
    axis = memory_axis(view.limit_bytes / words.GIB, [bar.total / words.GIB for bar in view.bars])
    rows = "".join(_bar(bar, view.limit_bytes, axis, parts, paint) for bar in view.bars)
    return (
        f'<figure class="plan stacks"><div role="img" aria-label="{text(_told(view))}">'
        f"{_legend(parts, paint)}{_limit_label(view, axis)}{rows}"
        f'<div class="row"><span></span>{ticks(axis)}<span></span></div></div>'
        f"<figcaption>GiB of one device at its peak.</figcaption></figure>{_table(view, parts)}"
    )


def ticks(axis: Axis) -> str:
    """The numbers under an axis."""
    marks = (f'<span style="left:{percent(axis.place(tick))}">{text(f"{tick:,g}")}</span>' for tick in axis.ticks)
    return f'<div class="ticks" aria-hidden="true">{"".join(marks)}</div>'


def percent(part: float) -> str:
    """A share as a length of CSS."""
    return f"{100 * part:.2f}%"


def _bar(bar: MemoryBar, limit: float, axis: Axis, parts: Sequence[str], paint: Mapping[str, str]) -> str:
    pieces, below = [], 0.0
    for part in parts:
        size = bar.parts.get(part, 0.0) / words.GIB
        if size > 0:
            pieces.append(_piece(part, below, size, axis, paint[part]))
        below += size
    cut = '<i class="cut" title="goes on beyond the picture">›</i>' if below > axis.end else ""
    css, verdict = ("right", "fits") if bar.fits_in(limit) else ("wrong", "does not fit")
    name = f"<b>{text(bar.label)}</b>" if bar.chosen else text(bar.label)
    chosen = "chosen · " if bar.chosen else ""
    return (
        f'<div class="row"><span class="name">{name}<small>{chosen}peak: {text(words.words(bar.phase))}</small></span>'
        f'<div class="track">{"".join(pieces)}{cut}{_limit(limit, axis)}</div>'
        f'<span class="told">{words.gib(bar.total)} GiB<small class="{css}">{verdict}</small></span></div>'
    )


def _piece(part: str, below: float, size: float, axis: Axis, colour: str) -> str:
    start, end = axis.place(below), axis.place(below + size)
    figure = f"{size:.1f}" if end - start >= _LABELLED else ""
    style = f"left:{percent(start)};width:{percent(end - start)};background:{colour};color:{ink_on(colour)}"
    return f'<span class="part" style="{style}" title="{text(words.words(part))} {size:.2f} GiB">{figure}</span>'


def _limit(limit: float, axis: Axis) -> str:
    return f'<i class="limit" style="left:{percent(axis.place(limit / words.GIB))}"></i>'


def _limit_label(view: PlanView, axis: Axis) -> str:
    """Which device the line stands for, on the side of the line that has room."""
    place = axis.place(view.limit_bytes / words.GIB)
    side = f"left:{percent(place)}" if place < 0.5 else f"right:{percent(1 - place)}"
    told = f"{view.device}: {words.gib(view.limit_bytes)} GiB"
    return (
        f'<div class="row"><span></span><div class="above"><span style="{side}">{text(told)}</span></div>'
        "<span></span></div>"
    )


def _legend(parts: Sequence[str], paint: Mapping[str, str]) -> str:
    keys = (f'<span><i style="background:{paint[part]}"></i>{text(words.words(part))}</span>' for part in parts)
    return f'<div class="legend">{"".join(keys)}</div>'


def _told(view: PlanView) -> str:
    """The picture in words, for whoever cannot see it."""
    totals = "; ".join(f"{bar.label} {words.gib(bar.total)}" for bar in view.bars)
    return f"Memory in GiB against the {words.gib(view.limit_bytes)} of {view.device}: {totals}"


def _table(view: PlanView, parts: Sequence[str]) -> str:
    hosts = any(bar.host_bytes for bar in view.bars)
    headers = ["GiB", "total", *map(words.words, parts), *(["on the host"] if hosts else [])]
    rows = []
    for bar in view.bars:
        css = "right" if bar.fits_in(view.limit_bytes) else "wrong"
        name = f"{text(bar.label)}<br><small>peak: {text(words.words(bar.phase))}</small>"
        sizes = [*(bar.parts.get(part, 0.0) for part in parts), *([bar.host_bytes] if hosts else [])]
        cells = (words.gib(size, 2) if size else words.NOTHING for size in sizes)
        rows.append([name, f'<b class="{css}">{words.gib(bar.total, 2)}</b>', *cells])
    return table(headers, rows, "figures")
