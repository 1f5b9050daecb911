"""Which curves are drawn together: the same four panels on the page and in curves.png."""

from __future__ import annotations

from collections.abc import Sequence

from hf_recipes.report.chart import Panel
from hf_recipes.report.series import Event, series, throughput, timeline


def panels(events: Sequence[Event]) -> list[Panel]:
    """Loss with eval loss, learning rate, gradient norm and throughput, as far as they were logged."""
    kept = timeline(events)
    candidates = [
        Panel("Loss", [("train", series(kept, "log", "loss")), ("eval", series(kept, "eval", "eval_loss"))]),
        Panel("Learning rate", [("learning rate", series(kept, "log", "learning_rate"))]),
        Panel("Gradient norm before clipping", [("gradient norm", series(kept, "log", "grad_norm"))]),
        Panel("Tokens per second", [("tokens per second", throughput(kept))]),
    ]
    shown = [Panel(panel.title, [curve for curve in panel.curves if curve[1]]) for panel in candidates]
    return [panel for panel in shown if panel.curves]
