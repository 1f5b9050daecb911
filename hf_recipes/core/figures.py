"""Figures drawn by matplotlib into files, without a window system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_recipes.core.files import staged_beside


def new_figure(width: float, height: float) -> Any:
    """An empty `matplotlib.figure.Figure` of this many inches, at 120 dots an inch, that lays its panels out itself."""
    # The classes, not pyplot: no window system, no figures kept in a global list.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=120)
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG, whole or not at all.

    Raises:
        OSError: it names `path`; nothing half-written is left.
    """
    staged = staged_beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(staged, format="png")
        staged.replace(path)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        staged.unlink(missing_ok=True)
