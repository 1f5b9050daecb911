"""Numbers → one line chart as SVG. Pure; colours are CSS classes, so that the page's light and dark themes hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hf_recipes.report.escape import text
from hf_recipes.report.scale import linear_ticks, log_ticks, number, thin, wants_log
from hf_recipes.report.series import Alarm, Series

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 34, 30
MAX_POINTS = 600


@dataclass(frozen=True)
class Panel:
    """What one chart shows: its `title` and curves with their legend names."""

    title: str
    curves: Sequence[tuple[str, Series]]


@dataclass(frozen=True)
class _Axes:
    """Maps steps and values to pixels."""

    first: float
    last: float
    low: float
    high: float
    log: bool

    def x(self, step: float) -> float:
        return LEFT + (step - self.first) / (self.last - self.first) * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        if self.log:
            low, high = math.log(self.low), math.log(self.high)
            part = (math.log(value) - low) / (high - low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)


def line_chart(panel: Panel, alarms: Sequence[Alarm] = ()) -> str:
    """The panel as an ``<svg>``: a line a curve (dots where it has few points), gaps and crosses where values were not
    finite, dashed verticals where alarms rang. The y axis is logarithmic when values span a factor of 50."""
    axes = _axes(panel)
    title = panel.title + (" (log scale)" if axes.log else "")
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(_summary(panel))}">',
        f'<text class="title" x="{LEFT}" y="18">{text(title)}</text>',
        *_legend(panel),
        *_grid(axes),
        *(_alarm(axes, alarm) for alarm in alarms if axes.first <= alarm.step <= axes.last),
        *(part for index, (name, curve) in enumerate(panel.curves) for part in _curve(axes, index, name, curve)),
        "</svg>",
    ]
    return "".join(parts)


def _axes(panel: Panel) -> _Axes:
    values = [value for _, curve in panel.curves for _, value in curve.points]
    steps = [step for _, curve in panel.curves for step, _ in [*curve.points, *curve.bad]] or [0]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    first, last = min(steps), max(steps)
    if first == last:
        first, last = first - 1, last + 1
    if wants_log(values):
        return _Axes(first, last, low / 1.15, high * 1.15, log=True)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
    floor = 0.0 if 0 <= low < 0.35 * high else low - margin  # keep zero in sight when it is near
    return _Axes(first, last, floor, high + margin, log=False)


def _grid(axes: _Axes) -> list[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    parts = []
    for value in (log_ticks if axes.log else linear_ticks)(axes.low, axes.high):
        y = f"{axes.y(value):.1f}"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y}" dy="4" text-anchor="end">{number(value)}</text>')
    for step in linear_ticks(axes.first, axes.last, 6):
        if step == int(step) and step >= 0:
            x = f"{axes.x(step):.1f}"
            parts.append(f'<text class="tick" x="{x}" y="{bottom + 18}" text-anchor="middle">{int(step)}</text>')
    parts.append(f'<text class="tick" x="{LEFT - 6}" y="{bottom + 18}" text-anchor="end">step</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/>')
    return parts


def _legend(panel: Panel) -> list[str]:
    if len(panel.curves) < 2:
        return []
    parts, x = [], WIDTH - RIGHT - sum(28 + 7 * len(name) for name, _ in panel.curves)
    for index, (name, _) in enumerate(panel.curves):
        parts.append(f'<line class="curve c{index}" x1="{x}" x2="{x + 14}" y1="14" y2="14"/>')
        parts.append(f'<text class="tick" x="{x + 18}" y="18">{text(name)}</text>')
        x += 28 + 7 * len(name)
    return parts


def _alarm(axes: _Axes, alarm: Alarm) -> str:
    x = f"{axes.x(alarm.step):.1f}"
    label = text(f"step {alarm.step}, {alarm.detector}: {alarm.message}")
    return (
        f'<g class="alarm"><title>{label}</title><line x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<path d="M{x} {TOP - 1}l-5 -8h10z"/></g>'
    )


def _curve(axes: _Axes, index: int, name: str, curve: Series) -> list[str]:
    parts = []
    for segment in curve.segments():
        points = " ".join(f"{axes.x(step):.1f},{axes.y(value):.1f}" for step, value in thin(segment, MAX_POINTS))
        parts.append(f'<polyline class="curve c{index}" points="{points}"/>')
    if len(curve.points) <= 40:  # few values: show each, with its number on hover
        parts += [
            f'<circle class="dot c{index}" cx="{axes.x(step):.1f}" cy="{axes.y(value):.1f}" r="2.5">'
            f"<title>{text(name)}, step {step}: {number(value)}</title></circle>"
            for step, value in curve.points
        ]
    for step, value in curve.bad:
        x = axes.x(step)
        parts.append(
            f'<g class="bad"><title>{text(name)}, step {step}: {text(value)}</title>'
            f'<path d="M{x - 4:.1f} {TOP + 3}l8 8m0 -8l-8 8"/></g>'
        )
    return parts


def _summary(panel: Panel) -> str:
    """The chart in words, for readers who do not see it."""
    phrases = []
    for name, curve in panel.curves:
        if curve.points:
            (first, start), (last, end) = curve.points[0], curve.points[-1]
            phrases.append(f"{name} from {number(start)} at step {first} to {number(end)} at step {last}")
        if curve.bad:
            phrases.append(f"{name} not finite at {len(curve.bad)} steps")
    return f"{panel.title}: {'; '.join(phrases)}"
