"""Which curves are drawn together: the same panels on the page, in curves.png and on the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from hf_recipes.report.history import History
from hf_recipes.report.series import Series, as_number


@dataclass(frozen=True)
class Curve:
    """A line of a chart. `sparse` marks evaluations: few points, drawn with dots and never smoothed."""

    name: str
    series: Series
    sparse: bool = False
    smooth: bool = True


@dataclass(frozen=True)
class Band:
    """The range a watcher holds for healthy, by step."""

    low: Series
    median: Series
    high: Series


@dataclass(frozen=True)
class Panel:
    """What one chart shows. `folded` charts are for those who look for them; `from_zero`
    keeps zero in sight, where a share of it counts."""

    title: str
    curves: tuple[Curve, ...]
    band: Band | None = None
    folded: bool = False
    from_zero: bool = False

    @property
    def values(self) -> np.ndarray:
        """All finite values of all its curves, and of its band."""
        edges = [self.band.low, self.band.high] if self.band else []
        series = [*(curve.series for curve in self.curves), *edges]
        return np.concatenate([each.finite.values for each in series] or [np.zeros(0)])


BAND_NAMES = ("grad_norm_low", "grad_norm_median", "grad_norm_high")
_MEMORY = ("memory_gb", "memory_total_gb")
_SHARES = ("data_wait_share", "gpu_utilization", "cpu_utilization", "mfu")
_SHOWN = {"loss", "learning_rate", "grad_norm", "tokens_per_second", *BAND_NAMES, *_MEMORY, *_SHARES}


def panels(history: History) -> list[Panel]:
    """Loss with its evaluations, learning rate, gradient norm with its band, throughput, memory, utilisation; then,
    folded, whatever else was logged as numbers. Panels without a value are left out."""
    losses = [name for name in history.names("eval") if name == "eval_loss" or _is_part(name)]
    log = ((name, history.series("log", name)) for name in history.names("log") if name not in _SHOWN)
    evaluated = ((name, history.series("eval", name)) for name in history.names("eval") if name not in losses)
    candidates = [
        Panel(
            "Loss",
            (
                Curve("train", history.series("log", "loss")),
                *(Curve(_part(name), history.series("eval", name), sparse=True, smooth=False) for name in losses),
            ),
        ),
        Panel("Learning rate", (Curve("learning rate", history.series("log", "learning_rate"), smooth=False),)),
        Panel(
            "Gradient norm before clipping",
            (Curve("gradient norm", history.series("log", "grad_norm")),),
            _band(history),
        ),
        Panel("Tokens per second", (Curve("tokens per second", history.throughput()),), from_zero=True),
        Panel("Memory (GB)", _logged(history, _MEMORY), from_zero=True),
        Panel("Utilisation (shares of 1)", _logged(history, _SHARES), from_zero=True),
        *(Panel(name, (Curve(name, series),), folded=True) for name, series in log),
        *(Panel(name, (Curve(name, series, sparse=True, smooth=False),), folded=True) for name, series in evaluated),
    ]
    shown = (replace(panel, curves=tuple(curve for curve in panel.curves if len(curve.series))) for panel in candidates)
    return [panel for panel in shown if panel.curves]


def _is_part(name: str) -> bool:
    return name.startswith("eval_") and name.endswith("_loss")


def _part(name: str) -> str:
    """``eval_general_loss`` → "eval, general"."""
    return "eval" if name == "eval_loss" else "eval, " + name[len("eval_") : -len("_loss")].replace("_", " ")


def _logged(history: History, names: Iterable[str]) -> tuple[Curve, ...]:
    return tuple(Curve(name.replace("_", " "), history.series("log", name)) for name in names)


def _band(history: History) -> Band | None:
    """The band as logged at each step; else as alarms and the note at the end tell it."""
    logged = [history.series("log", name).finite for name in BAND_NAMES]
    if all(map(len, logged)):
        return Band(*logged)
    told = [(event["step"], edges) for event in history.standing() if (edges := _edges(event))]
    if not told:
        return None
    reached = history.series("log", "grad_norm").steps
    if len({step for step, _ in told}) == 1 and len(reached):  # one band for the whole run
        told = [(int(step), told[-1][1]) for step in (reached[0], reached[-1])]
    return Band(*(Series.of((step, edges[index]) for step, edges in told) for index in range(3)))


def _edges(event: dict[str, object]) -> tuple[float, ...] | None:
    """Low, median and high of a gradient-norm event that tells them."""
    if event.get("detector") != "grad_norm":
        return None
    band = event.get("band")
    told = band if isinstance(band, list) else [event.get(name) for name in ("low", "median", "high")]
    edges = [edge for item in told if (edge := as_number(item)) is not None and np.isfinite(edge)]
    return tuple(edges) if len(edges) == 3 else None
