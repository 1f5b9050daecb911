"""Time and cost of kinds of device side by side, as HTML without scripts."""

from __future__ import annotations

from collections.abc import Sequence

from hf_recipes.core.escape import text
from hf_recipes.core.html import table
from hf_recipes.plan.pictures import words
from hf_recipes.plan.pictures.axes import Axis, band_axis
from hf_recipes.plan.pictures.data import DeviceRow
from hf_recipes.plan.pictures.memory_figure import percent, ticks


def device_figure(devices: Sequence[DeviceRow], currency: str) -> str:
    """Hours, and costs where any are known, each from low to high, and everything known as a table."""
    bands = [row.hours for row in devices if row.hours]
    costs = [row.cost for row in devices if row.cost]
    hours, cost = band_axis(bands), band_axis(costs) if costs else None
    drawn = "".join(_row(row, hours, cost, currency) for row in devices)
    caption = ""
    if bands:
        head, foot = f"<b>{_heading('hours', hours)}</b>", ticks(hours)
        if cost:
            head += f"<b>{text(_heading(f'cost, {currency}', cost))}</b>"
            foot += ticks(cost)
        scale = '<div class="row scale"><span></span>'
        drawn = f"{scale}{head}</div>{drawn}{scale}{foot}</div>"
        caption = (
            "<figcaption>The dot is what is expected, the line reaches from where to where it may be.</figcaption>"
        )
    return (
        f'<figure class="plan bands{" two" if cost else ""}">'
        f'<div role="img" aria-label="{text(_told(devices, currency))}">{drawn}</div>{caption}</figure>'
        f"{_table(devices, currency)}"
    )


def _heading(name: str, axis: Axis) -> str:
    return f"{name} (logarithmic)" if axis.log else name


def _row(row: DeviceRow, hours: Axis, cost: Axis | None, currency: str) -> str:
    if not row.fitting or row.hours is None:
        name = f'<span class="name">{text(_count(row))}</span>'
        css = "right" if row.fitting else "wrong"
        needs = f"needs {words.gib(row.needed_bytes)} GiB, has {words.gib(row.memory_bytes)}"
        return f'<div class="row">{name}<span class="never"><b class="{css}">{_fits(row)}</b> {needs}</span></div>'
    name = f'<span class="name">{text(_count(row))}<small>{text(row.strategy)}</small></span>'
    cells = _band(row.hours, hours, f"{words.banded(row.hours, words.short)} h")
    if cost and row.cost:
        cells += _band(row.cost, cost, words.money(row.cost, currency))
    elif cost:
        cells += '<span class="absent">no price known</span>'
    return f'<div class="row">{name}{cells}</div>'


def _band(values: words.Band, axis: Axis, told: str) -> str:
    """A bar from 0 (on a linear axis), a line from low to high with a dot at what is expected; figures above."""
    low, expected, high = map(axis.place, values)
    bar = "" if axis.log else f'<i class="fill" style="width:{percent(expected)}"></i>'
    return (
        f'<div><small class="value">{text(told)}</small><div class="track thin">{bar}'
        f'<i class="reach" style="left:{percent(low)};width:{percent(high - low)}"></i>'
        f'<i class="dot" style="left:{percent(expected)}"></i></div></div>'
    )


def _fits(row: DeviceRow) -> str:
    return "fits" if row.fitting else "does not fit"


def _count(row: DeviceRow) -> str:
    return f"{row.devices} × {row.device}"


def _told(devices: Sequence[DeviceRow], currency: str) -> str:
    """The picture in words, for whoever cannot see it."""
    told = []
    for row in devices:
        hours = f"{words.banded(row.hours, words.short)} hours" if row.hours else _fits(row)
        told.append(f"{_count(row)}: {hours}" + (f", {words.money(row.cost, currency)}" if row.cost else ""))
    return "; ".join(told)


def _table(devices: Sequence[DeviceRow], currency: str) -> str:
    headers = ["device", "needs GiB", "has GiB", "hours", "cost", "kWh", "why"]
    rows = [
        [
            text(_count(row)),
            f'<b class="{"right" if row.fitting else "wrong"}">{words.gib(row.needed_bytes)}</b>',
            words.gib(row.memory_bytes),
            text(words.banded(row.hours, words.short)) if row.hours else words.NOTHING,
            text(words.money(row.cost, currency)) if row.cost else words.NOTHING,
            words.NOTHING if row.kwh is None else text(words.short(row.kwh)),
            text(row.why),
        ]
        for row in devices
    ]
    return table(headers, rows, "figures worded")
