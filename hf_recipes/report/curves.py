"""`curves.png`: the panels drawn by matplotlib, for places where no HTML goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.chart import Panel
from hf_recipes.report.panels import panels
from hf_recipes.report.read_run import read_run
from hf_recipes.report.scale import wants_log
from hf_recipes.report.series import Alarm, alarms, timeline

_COLOURS = ("#2563eb", "#ea580c")
_ALARM = "#dc2626"


def write_curves(run: RunDirectory) -> Path:
    """Draw the run's curves into ``curves.png`` and return its path; without logged values, a picture that says so."""
    # The classes, not pyplot: no window system, no figures kept in a global list.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    record = read_run(run)
    drawn, marks = panels(record.events), alarms(timeline(record.events))
    rows = max(1, (len(drawn) + 1) // 2)
    figure = Figure(figsize=(11, 3.4 * rows), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    figure.suptitle(record.path.name, fontsize=11, parse_math=False)
    for index, panel in enumerate(drawn):
        _draw(figure.add_subplot(rows, 2 if len(drawn) > 1 else 1, index + 1), panel, marks)
    if not drawn:
        figure.text(0.5, 0.5, "No values were logged.", ha="center", va="center")
    path = run.path / "curves.png"
    staged = path.with_name(".curves.tmp.png")
    figure.savefig(staged)
    staged.replace(path)
    return path


def _draw(axes: Any, panel: Panel, marks: list[Alarm]) -> None:
    axes.set_title(panel.title, loc="left", fontsize=10)
    for (name, curve), colour in zip(panel.curves, _COLOURS, strict=False):
        for index, segment in enumerate(curve.segments()):
            steps, values = zip(*segment, strict=True)
            marker = "o" if len(curve.points) <= 40 else None
            label = name if index == 0 else None
            axes.plot(steps, values, color=colour, linewidth=1.4, marker=marker, markersize=3, label=label)
        for step, _ in curve.bad:
            axes.plot(step, 0.97, "x", color=_ALARM, transform=axes.get_xaxis_transform())
    if wants_log([value for _, curve in panel.curves for _, value in curve.points]):
        axes.set_yscale("log")
    for alarm in marks:
        axes.axvline(alarm.step, color=_ALARM, linestyle="--", linewidth=1, alpha=0.7)
    if len(panel.curves) > 1:
        axes.legend(frameon=False, fontsize=9)
    axes.set_xlabel("step", fontsize=9)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
