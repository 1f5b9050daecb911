"""Panels of one or several runs → what page.js draws: JSON with the numbers as base64 of typed arrays. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from hf_recipes.report.history import History
from hf_recipes.report.panels import Curve, Panel, panels
from hf_recipes.report.scale import number, wants_log
from hf_recipes.report.series import Series

COLOURS = 8  # as many as style.css names


class _Arrays:
    """Arrays of numbers, each kept once however many curves refer to it."""

    def __init__(self) -> None:
        self.packed: list[dict[str, Any]] = []
        self._known: dict[tuple[str, bytes], int] = {}

    def add(self, values: np.ndarray) -> int:
        """The number by which page.js finds these values again, bit for bit."""
        if (spaced := _evenly_spaced(values)) is not None:
            self.packed.append(spaced)
            return len(self.packed) - 1
        kind, packed = _smallest(values)
        key = (kind, packed)
        if key not in self._known:
            self._known[key] = len(self.packed)
            self.packed.append({"type": kind, "b64": base64.b64encode(packed).decode("ascii")})
        return self._known[key]


def _evenly_spaced(values: np.ndarray) -> dict[str, Any] | None:
    """Steps at equal distances, as they mostly are, in three numbers."""
    if values.dtype != np.int64 or len(values) < 2:
        return None
    by = int(values[1] - values[0])
    if not (np.diff(values) == by).all():
        return None
    return {"from": int(values[0]), "by": by, "count": len(values)}


def _smallest(values: np.ndarray) -> tuple[str, bytes]:
    """As 32-bit floats where that loses nothing (logged losses come from such), else as 64-bit ones."""
    with np.errstate(over="ignore"):
        narrow = values.astype("<f4")
    if np.array_equal(narrow.astype("<f8"), values.astype("<f8"), equal_nan=True):
        return "f4", narrow.tobytes()
    return "f8", values.astype("<f8").tobytes()


def chart_data(histories: Sequence[tuple[str, History]]) -> dict[str, Any]:
    """All that the charts of these runs (name, history) need; panels of the same title share a chart."""
    arrays = _Arrays()
    charts: dict[str, dict[str, Any]] = {}
    for run, (_, history) in enumerate(histories):
        for panel in panels(history):
            chart = charts.setdefault(
                panel.title,
                {
                    "title": panel.title,
                    "folded": panel.folded,
                    "from_zero": panel.from_zero,
                    "log": False,
                    "curves": [],
                    "bands": [],
                    "summary": "",
                },
            )
            _add_panel(chart, panel, arrays, run, histories)
    ordered = sorted(charts.values(), key=lambda chart: chart["folded"])  # stable: the panels' own order
    return {
        "runs": [name for name, _ in histories],
        "charts": ordered,
        "arrays": arrays.packed,
        "alarms": [
            {"run": run, "step": alarm.step, "detector": alarm.detector, "message": alarm.message}
            for run, (_, history) in enumerate(histories)
            for alarm in history.alarms(standing=True)
        ],
    }


def _add_panel(
    chart: dict[str, Any], panel: Panel, arrays: _Arrays, run: int, histories: Sequence[tuple[str, History]]
) -> None:
    several = len(histories) > 1
    chart["log"] = chart["log"] or wants_log(panel.values)
    for place, curve in enumerate(panel.curves):
        name = curve.name if len(panel.curves) > 1 or not several else ""
        name = f"{histories[run][0]} {name}".strip() if several else name
        chart["curves"].append(
            {
                "name": name,
                "run": run,
                "colour": (run if several else place) % COLOURS,
                "dash": ("solid", "dot", "dash", "dashdot")[place % 4] if several else "solid",
                "sparse": curve.sparse,
                "smooth": curve.smooth,
                "steps": arrays.add(curve.series.steps),
                "values": arrays.add(curve.series.values),
            }
        )
        chart["summary"] += ("; " if chart["summary"] else f"{panel.title}: ") + _summary(name, curve)
    if panel.band and not several:
        sides = {"low": panel.band.low, "median": panel.band.median, "high": panel.band.high}
        chart["bands"].append({side: _points(series, arrays) for side, series in sides.items()})


def _points(series: Series, arrays: _Arrays) -> dict[str, int]:
    return {"steps": arrays.add(series.steps), "values": arrays.add(series.values)}


def _summary(name: str, curve: Curve) -> str:
    """A curve in words, for readers who do not see it."""
    finite, bad = curve.series.finite, len(curve.series) - len(curve.series.finite)
    phrases = []
    if len(finite):
        start, end = number(finite.values[0]), number(finite.values[-1])
        phrases.append(f"{name} from {start} at step {finite.steps[0]} to {end} at step {finite.steps[-1]}")
    if bad:
        phrases.append(f"{name} not finite at {bad} steps")
    return ", ".join(phrases)
