"""The pure detector behind `GradNormWatch`: a robust band of gradient norms, learned from the run itself."""

from __future__ import annotations

import math
import statistics
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["warming_up", "healthy", "exploding", "vanishing", "shifted", "stuck", "not_finite"]

GUIDE_LOW, GUIDE_HIGH = 0.5, 2.0
"""Healthy gradient norms by the field guides; they depend on model and method, so they are only told, at the end."""

# The standard deviation of a normal distribution is 1.4826 times its median absolute deviation.
_MAD_TO_SIGMA = 1.4826
# A norm within a factor of four of the median is never an alarm, however quiet the window was: batches of rows of two
# kinds differ by more than two.
_LEAST_HALF_WIDTH = math.log(4.0)
_ROUNDING = 1e-9
# Equal to the last bit: chance makes two in a row now and then, never this many.
STUCK_AFTER = 5


@dataclass(frozen=True)
class NormVerdict:
    """What one norm was. `first` marks the first of an unbroken series of its kind: the one worth an alarm.

    `low`, `median`, `high` are the band it was judged by (None before there is one).
    """

    kind: Kind
    norm: float
    first: bool
    low: float | None = None
    median: float | None = None
    high: float | None = None


class NormBand:
    """Judges gradient norms against median ± `sigma` robust standard deviations of log(norm) over `window` norms.

    The logarithm, because norms vary by factors: so the band has a lower edge too, and scaling all norms changes
    nothing. A value out of the band is counted once and kept out of the window, so that it cannot widen the band; NaN,
    infinity and zero likewise. `warmup` values in a row on one side of the band are a new level: the window starts
    again from them. The fifth of a series of norms equal to the last bit is stuck: another batch, or weights that have
    moved, would have changed it.
    """

    def __init__(self, sigma: float = 8.0, window: int = 128, warmup: int = 16) -> None:
        self.sigma, self.warmup = sigma, warmup
        self.values: deque[float] = deque(maxlen=window)
        self.outside: list[float] = []
        self.counts: Counter[str] = Counter()
        self.in_guide = 0
        self.repeats = 0
        self._last_norm: float | None = None
        self._last_kind: str | None = None

    def judge(self, norm: float) -> NormVerdict:
        """Judge one step's norm (before clipping) and learn from it if it is healthy."""
        band = self.band()
        self.repeats = self.repeats + 1 if norm == self._last_norm else 0
        self._last_norm = norm if math.isfinite(norm) else None
        kind = self._admit(norm, band)
        first = kind != self._last_kind
        self._last_kind = kind
        self.counts[kind] += 1
        self.in_guide += GUIDE_LOW <= norm <= GUIDE_HIGH  # False for NaN
        return NormVerdict(kind, norm, first, *(band or ()))

    def band(self) -> tuple[float, float, float] | None:
        """Lower edge, median and upper edge, or None while warming up."""
        if len(self.values) < self.warmup:
            return None
        logs = [math.log(value) for value in self.values]
        centre = statistics.median(logs)
        spread = statistics.median(abs(value - centre) for value in logs)
        half_width = max(self.sigma * _MAD_TO_SIGMA * spread, _LEAST_HALF_WIDTH) + _ROUNDING
        return _exp(centre - half_width), _exp(centre), _exp(centre + half_width)

    def _admit(self, norm: float, band: tuple[float, float, float] | None) -> Kind:
        if not math.isfinite(norm):
            return "not_finite"
        if norm <= 0:
            return "vanishing"
        if band is None or band[0] <= norm <= band[2]:
            self.values.append(norm)
            self.outside.clear()
            if self.repeats + 1 >= STUCK_AFTER:
                return "stuck"
            return "warming_up" if band is None else "healthy"
        if self.outside and (self.outside[-1] > band[1]) != (norm > band[1]):
            self.outside.clear()
        self.outside.append(norm)
        if len(self.outside) >= self.warmup:
            self.values.clear()
            self.values.extend(self.outside)
            self.outside.clear()
            return "shifted"
        return "exploding" if norm > band[1] else "vanishing"

    def state_dict(self) -> dict[str, Any]:
        """Everything learned, as JSON-safe data (all values kept are finite)."""
        return {
            "values": list(self.values),
            "outside": list(self.outside),
            "counts": dict(self.counts),
            "in_guide": self.in_guide,
            "repeats": self.repeats,
            "last_norm": self._last_norm,
            "last_kind": self._last_kind,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave; thresholds are not part of it, so a resumed run may change them."""
        self.values.clear()
        self.values.extend(state["values"])
        self.outside = list(state["outside"])
        self.counts = Counter(state["counts"])
        self.in_guide = state["in_guide"]
        self.repeats = state.get("repeats", 0)  # absent in checkpoints of 0.1.0
        self._last_norm = state.get("last_norm")
        self._last_kind = state["last_kind"]


def _exp(value: float) -> float:
    return math.exp(value) if value < 709.0 else math.inf
