"""`curves.png`: the panels drawn by matplotlib, for places where no HTML goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hf_recipes.core.figures import new_figure, save_figure
from hf_recipes.report.panels import Panel, panels
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.scale import wants_log
from hf_recipes.report.series import Alarm

_COLOURS = ("#2563eb", "#ea580c", "#0f8a6d", "#9333b8", "#a16207", "#be185d", "#0e7490", "#57534e")
_ALARM, _BAND = "#dc2626", "#15803d"
_MAX_POINTS = 2000


def write_curves(record: RunRecord) -> Path:
    """Draw the run's curves into ``curves.png`` and return its path; without logged values, a picture that says so."""
    drawn = [panel for panel in panels(record.history) if not panel.folded]
    marks = record.history.alarms(standing=True)
    rows = max(1, (len(drawn) + 1) // 2)
    figure = new_figure(11, 3.4 * rows)
    figure.suptitle(record.path.name, fontsize=11, parse_math=False)
    for index, panel in enumerate(drawn):
        _draw(figure.add_subplot(rows, 2 if len(drawn) > 1 else 1, index + 1), panel, marks)
    if not drawn:
        figure.text(0.5, 0.5, "No values were logged.", ha="center", va="center")
    path = record.path / "curves.png"
    save_figure(figure, path)
    return path


def _draw(axes: Any, panel: Panel, marks: list[Alarm]) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10, parse_math=False)
    if panel.band:
        low, high = (side.thinned(_MAX_POINTS) for side in (panel.band.low, panel.band.high))
        # A polygon round both: thinned apart, they need not have the same steps.
        steps = np.concatenate([low.steps, high.steps[::-1]])
        values = np.concatenate([low.values, high.values[::-1]])
        axes.fill(steps, values, color=_BAND, alpha=0.12, linewidth=0, label="healthy band")
    for curve, colour in zip(panel.curves, _COLOURS, strict=False):
        for index, segment in enumerate(curve.series.segments()):
            marker = "o" if len(curve.series) <= 40 or len(segment) == 1 else None
            label = curve.name.replace("$", r"\$") if index == 0 else None  # no mathematics
            points = segment.thinned(_MAX_POINTS)
            axes.plot(
                points.steps, points.values, color=colour, linewidth=1.4, marker=marker, markersize=3, label=label
            )
        for step, _ in curve.series.bad[:200]:
            axes.plot(step, 0.97, "x", color=_ALARM, transform=axes.get_xaxis_transform())
    if wants_log(panel.values):
        axes.set_yscale("log")
    elif panel.from_zero:
        axes.set_ylim(bottom=min(0, panel.values.min(initial=0)))
    for alarm in marks[-200:]:
        axes.axvline(alarm.step, color=_ALARM, linestyle="--", linewidth=1, alpha=0.7)
    if len(panel.curves) > 1 or panel.band:
        axes.legend(fontsize=9, framealpha=0.85, edgecolor="none")
    axes.set_xlabel("step", fontsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
