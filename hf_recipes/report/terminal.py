"""The report for a terminal: verdict, sparklines, alarms. Pure: a record in, lines out."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

import numpy as np

from hf_recipes.core.escape import plain
from hf_recipes.report.headline import headline
from hf_recipes.report.overlay import run_names
from hf_recipes.report.panels import Panel, panels
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.scale import NOTHING, number
from hf_recipes.report.series import Series
from hf_recipes.report.verdict import verdict

BLOCKS, PLAIN_BLOCKS = "▁▂▃▄▅▆▇█", "_.-=+*%#"
_SHOWN_PANELS = ("Loss", "Learning rate", "Gradient norm before clipping", "Tokens per second")
_SHOWN_ALARMS = 10
_NARROWEST, _WIDEST = 10, 60


def render_text(records: Sequence[RunRecord], width: int | None = None, blocks: str = BLOCKS) -> str:
    """One or several runs as text, at most `width` columns wide (default: the terminal's)."""
    width = width or shutil.get_terminal_size((100, 24)).columns
    parts = [_run(record, name, width, blocks) for record, name in zip(records, run_names(records), strict=True)]
    return "\n\n".join(parts)


def sparkline(series: Series, columns: int, blocks: str = BLOCKS) -> str:
    """The curve in `columns` characters: the mean of each stretch of steps between lowest and highest; ``×`` where a
    value was not finite, a blank where nothing was logged."""
    finite = series.finite
    if not len(series):
        return ""
    columns = min(columns, len(series))
    first, last = int(series.steps[0]), int(series.steps[-1])
    where = (series.steps - first) * columns // (last - first + 1)
    means = [_mean(series.values[where == column]) for column in range(columns)]
    levels = [mean for mean in means if mean is not None and np.isfinite(mean)]
    low, high = (min(levels), max(levels)) if len(finite) and levels else (0.0, 0.0)
    return "".join(_block(mean, low, high, blocks) for mean in means)


def _mean(values: np.ndarray) -> float | None:
    if not len(values):
        return None
    scale = float(np.abs(values).max())  # summed as parts of the largest, which cannot overflow
    return float((values / scale).mean() * scale) if scale > 0 and np.isfinite(scale) else float(values.sum())


def _block(mean: float | None, low: float, high: float, blocks: str) -> str:
    if mean is None:
        return " "
    if not np.isfinite(mean):
        return "×" if blocks == BLOCKS else "x"
    span = high / 2 - low / 2  # halves: the whole may overflow
    share = (mean / 2 - low / 2) / span if span > 0 else 0.0
    return blocks[min(int(share * len(blocks)), len(blocks) - 1)]


def _run(record: RunRecord, name: str, width: int, blocks: str) -> str:
    stands = verdict(record)
    shown = [figure for figure in headline(record) if figure.shown != NOTHING and figure.name != "alarms"]
    figures = [f"{each.name} {each.shown}" + (f" ({each.detail})" if each.detail else "") for each in shown]
    lines = [
        *_wrapped(f"{plain(name)}: {plain(stands.word)}, {plain(stands.sentence)}", width),
        *_wrapped("; ".join(figures), width, "  "),
        "",
        *_curves([panel for panel in panels(record.history) if panel.title in _SHOWN_PANELS], width, blocks),
    ]
    alarms = record.history.alarms()
    if alarms:
        lines += ["", f"  {len(alarms)} alarm{'s' if len(alarms) > 1 else ''}"]
    for alarm in alarms[-_SHOWN_ALARMS:]:
        place = "" if alarm.message.startswith("Step ") else f"step {alarm.step}: "
        lines += _wrapped(f"{plain(alarm.detector)}: {place}{plain(alarm.message)}", width, "  ")
    if len(alarms) > _SHOWN_ALARMS:
        lines.append(f"  (the newest {_SHOWN_ALARMS}; all are in events.jsonl)")
    return "\n".join(lines)


def _curves(drawn: Sequence[Panel], width: int, blocks: str) -> list[str]:
    """A line each: name, curve, and where it went."""
    named = [
        (plain(f"loss, {curve.name}" if panel.title == "Loss" else curve.name), curve.series)
        for panel in drawn
        for curve in panel.curves
    ]
    if not named:
        return ["  Nothing was logged yet."]
    told = [_told(series) for _, series in named]
    margin = min(max(len(name) for name, _ in named), 28)
    columns = max(_NARROWEST, min(_WIDEST, width - margin - max(map(len, told)) - 6))
    lines = [sparkline(series, columns, blocks) for _, series in named]
    longest = max(map(len, lines))
    return [
        f"  {name[:margin].ljust(margin)}  {line.ljust(longest)}  {tail}"
        for (name, _), line, tail in zip(named, lines, told, strict=True)
    ]


def _told(series: Series) -> str:
    """First and last value, lowest and highest, and how many were not finite."""
    finite = series.finite.values
    told = f"{number(float(series.values[0]))} to {number(float(series.values[-1]))}"
    if len(finite):
        told += f" (range {number(float(finite.min()))} to {number(float(finite.max()))})"
    bad = len(series) - len(finite)
    return told + (f", {bad} not finite" if bad else "")


def _wrapped(sentence: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(sentence, max(width, 40), initial_indent=indent, subsequent_indent=indent + "  ")
