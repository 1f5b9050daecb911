"""`sweep.png` and `lr_range.png`: a curve over one key, a heat map over two, a panel a key for more."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.figures import new_figure, save_figure
from hf_recipes.sweep.axes import short, show
from hf_recipes.sweep.range_test import Suggestion, smooth
from hf_recipes.sweep.ranking import Group

_INK, _QUIET, _BEST, _LINE = "#1f2937", "#6b7280", "#d55e00", "#0072b2"  # Okabe and Ito's, for the colour-blind too
_LOG_RATIO = 20.0


def draw_sweep(groups: Sequence[Group], metric: str, path: Path, *, less: bool) -> None:
    """Draw the groups (trials that differ in their seed alone, best first) into a PNG file."""
    keys = _varied(groups)
    width = 6.5 * max(1, len(keys)) if len(keys) != 2 else 8.0
    figure = new_figure(min(width, 20.0), 5.0)
    if not keys:
        figure.text(0.5, 0.5, "No two trials have ended yet that differ.", ha="center", va="center")
    elif len(keys) == 2 and _fills_grid(groups, keys):
        _heat_map(figure, groups, keys, metric, less=less)
    else:
        for index, key in enumerate(keys):
            _panel(figure.add_subplot(1, len(keys), index + 1), groups, key, metric, alone=len(keys) == 1)
    save_figure(figure, path)


def _varied(groups: Sequence[Group]) -> list[str]:
    keys = dict.fromkeys(key for group in groups for key in group.point)
    return [key for key in keys if len({show(group.point.get(key)) for group in groups}) > 1]


def _fills_grid(groups: Sequence[Group], keys: Sequence[str]) -> bool:
    """Whether half of all combinations were tried: of a few drawn points a heat map is mostly holes."""
    sizes = [len({show(group.point.get(key)) for group in groups}) for key in keys]
    return 2 * len(groups) >= sizes[0] * sizes[1]


def _panel(axes: Any, groups: Sequence[Group], key: str, metric: str, *, alone: bool) -> None:
    """The metric over one key: a line through the means where nothing else varies, else points."""
    values: list[Any] = [group.point.get(key) for group in groups]
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    ordered: list[Any] = sorted(set(values)) if numeric else list(dict.fromkeys(map(show, values)))
    places: list[Any] = [value if numeric else ordered.index(show(value)) for value in values]
    for index, (group, place) in enumerate(zip(groups, places, strict=True)):
        low, high = (side(result.value for result in group.results) for side in (min, max))
        colour = _BEST if index == 0 else _LINE
        axes.errorbar(
            place,
            group.mean,
            yerr=[[group.mean - low], [high - group.mean]],
            fmt="o",
            color=colour,
            capsize=4,
            zorder=3,
        )
    if alone and numeric:
        line = sorted(zip(places, [group.mean for group in groups], strict=True))
        axes.plot([place for place, _ in line], [mean for _, mean in line], color=_LINE, linewidth=1.4)
    if numeric and min(ordered) > 0 and max(ordered) / min(ordered) >= _LOG_RATIO:
        axes.set_xscale("log")
    elif not numeric:
        axes.set_xticks(range(len(ordered)), ordered, rotation=20 if max(map(len, ordered)) > 10 else 0, fontsize=8)
        axes.set_xlim(-0.5, len(ordered) - 0.5)
    axes.set_xlabel(short(key))
    axes.set_ylabel(metric)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(
        f"{metric} by {short(key)} (orange: the best)", loc="left", fontsize=10, color=_INK, parse_math=False
    )


def _heat_map(figure: Any, groups: Sequence[Group], keys: Sequence[str], metric: str, *, less: bool) -> None:
    from matplotlib.patches import Rectangle

    across, down = (_ordered([group.point.get(key) for group in groups]) for key in keys)
    axes = figure.add_subplot()
    means = {(show(g.point.get(keys[0])), show(g.point.get(keys[1]))): g for g in groups}
    best, worst = groups[0].mean, groups[-1].mean
    # A trial that exploded would leave the others without a difference.
    middle = statistics.median(group.mean for group in groups)
    worst = (min if less else max)(worst, best + 3 * (middle - best)) if middle != best else worst
    for (x, y), group in means.items():
        share = 0.0 if worst == best else min(1.0, (group.mean - best) / (worst - best))
        axes.add_patch(
            Rectangle(
                (across.index(x), down.index(y)), 1, 1, facecolor=_LINE, alpha=0.75 - 0.65 * share, edgecolor="white"
            )
        )
        axes.text(
            across.index(x) + 0.5,
            down.index(y) + 0.5,
            str(group),
            ha="center",
            va="center",
            color=_INK,
            fontweight="bold" if group is groups[0] else "normal",
        )
    axes.set(xlim=(0, len(across)), ylim=(0, len(down)), xlabel=short(keys[0]), ylabel=short(keys[1]))
    axes.set_xticks([x + 0.5 for x in range(len(across))], across)
    axes.set_yticks([y + 0.5 for y in range(len(down))], down)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    axes.set_title(
        f"{metric} (darker is better, bold: the best)", loc="left", fontsize=10, color=_INK, parse_math=False
    )


def _ordered(values: Sequence[Any]) -> list[str]:
    """Values as text, numbers by size, others by first sight."""
    numeric = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
    return list(dict.fromkeys(show(value) for value in (sorted(values) if numeric else values)))


def draw_range(rates: Sequence[float], losses: Sequence[float], found: Suggestion, path: Path) -> None:
    """Draw a range test: losses, their smoothed curve, and the suggestion."""
    import numpy as np

    figure = new_figure(8.0, 5.0)
    axes = figure.add_subplot()
    values = np.array(losses, dtype=float)
    known = np.isfinite(values)
    shown = values[known]
    axes.plot(np.array(rates)[known], shown, ".", color=_QUIET, markersize=4, label="each step")
    smoothed = smooth(shown.tolist())
    axes.plot(np.array(rates)[known], smoothed, color=_LINE, linewidth=1.8, label="smoothed")
    if found.learning_rate is not None:
        axes.axvline(found.learning_rate, color=_BEST, linestyle="--", label=f"suggested: {found.learning_rate:g}")
    for place, name in ((found.lowest, "lowest"), (found.steepest, "steepest")):
        if place is not None:
            axes.axvline(place, color=_QUIET, linestyle=":", linewidth=1, label=f"{name}: {place:.2g}")
    if smoothed:
        low, first = float(shown.min()), smoothed[0]
        high = min(float(shown.max()), first + max(first - low, 0.2 * first))  # an explosion would flatten the rest
        axes.set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low) + 1e-9)
    axes.set_xscale("log")
    axes.set(xlabel="learning rate", ylabel="training loss, nats per token")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=9, frameon=False)
    save_figure(figure, path)
