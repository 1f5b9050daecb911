"""Axes: where ticks lie, how numbers are written, when a logarithm shows more, and fewer points without lost spikes."""

from __future__ import annotations

import math
from collections.abc import Sequence

LOG_RATIO = 50.0  # beyond this, the small values of a linear axis lie on its floor


def wants_log(values: Sequence[float]) -> bool:
    """Whether positive values span so much that a logarithmic axis is needed to read the small ones."""
    return bool(values) and min(values) > 0 and max(values) / min(values) > LOG_RATIO


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers (1, 2, 2.5 or 5 times a power of ten) within [low, high], at most about `count` of them."""
    if not high > low:
        return [low]
    raw = (high - low) / max(count - 1, 1)
    if raw == 0 or not math.isfinite(raw):  # the range underflows or overflows
        return [low, high]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw), 10 * power)
    if step == 0:
        return [low, high]
    first, last = math.ceil(low / step), math.floor(high / step)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Powers of ten within [low, high], thinned to about `count`; within one decade, round numbers instead."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    if last - first < 1:
        return linear_ticks(low, high, count)
    every = max(1, math.ceil((last - first + 1) / count))
    return [10.0**exponent for exponent in range(first, last + 1, every)]


def number(value: float) -> str:
    """A number as short as its reader needs: four significant digits; ``nan`` and ``inf`` as they are."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}".replace("-0", "0")
    if abs(value) >= 1e5 or abs(value) < 1e-3:
        mantissa, exponent = f"{value:.2e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:.4g}"


def thin(points: Sequence[tuple[int, float]], limit: int) -> list[tuple[int, float]]:
    """At most about `limit` points: of each stretch the lowest and the highest, so that spikes stay."""
    if len(points) <= limit:
        return list(points)
    width = math.ceil(2 * len(points) / limit)
    kept: list[tuple[int, float]] = []
    for start in range(0, len(points), width):
        stretch = points[start : start + width]
        extremes = {min(stretch, key=lambda point: point[1]), max(stretch, key=lambda point: point[1])}
        kept.extend(sorted(extremes))
    return kept
