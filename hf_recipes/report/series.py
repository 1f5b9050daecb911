"""One curve: numbers by step, non-finite ones kept in their place, so that no line bridges them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Steps = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Series:
    """Values by ascending step, each step once: `steps` int64, `values` float64 with NaN and ±inf where they were."""

    steps: Steps
    values: Values

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]]) -> Series:
        """From (step, value) in any order; of equal steps the last stands."""
        pairs = list(points)
        return cls.ordered(
            np.array([step for step, _ in pairs], dtype=np.int64), np.array([value for _, value in pairs], dtype=float)
        )

    @classmethod
    def ordered(cls, steps: Steps, values: Values) -> Series:
        """From two arrays in the order of writing; of equal steps the last stands."""
        if len(steps) and not (np.diff(steps) > 0).all():
            order = np.argsort(steps, kind="stable")
            steps, values = steps[order], values[order]
            last = np.append(np.diff(steps) > 0, True)
            steps, values = steps[last], values[last]
        return cls(steps, values)

    @property
    def finite(self) -> Series:
        """The points whose value is a number."""
        kept = np.isfinite(self.values)
        return Series(self.steps[kept], self.values[kept])

    @property
    def bad(self) -> list[tuple[int, str]]:
        """The steps whose value was not finite, with ``"nan"``, ``"inf"`` or ``"-inf"``."""
        kept = ~np.isfinite(self.values)
        return [(int(step), str(float(value))) for step, value in zip(self.steps[kept], self.values[kept], strict=True)]

    @property
    def points(self) -> list[tuple[int, float]]:
        """The finite points as Python numbers."""
        finite = self.finite
        return list(zip(finite.steps.tolist(), finite.values.tolist(), strict=True))

    def segments(self) -> list[Series]:
        """The finite points in runs that no non-finite value interrupts."""
        edges = np.flatnonzero(np.diff(np.concatenate([[0], np.isfinite(self.values).astype(np.int8), [0]])))
        return [
            Series(self.steps[start:end], self.values[start:end])
            for start, end in zip(edges[::2], edges[1::2], strict=True)
        ]

    def thinned(self, limit: int) -> Series:
        """At most about `limit` of finite points: of each stretch the lowest and the highest, so that spikes stay."""
        count = len(self.steps)
        if count <= limit:
            return self
        width = -(-2 * count // limit)
        kept: set[int] = set()
        for start in range(0, count, width):
            stretch = self.values[start : start + width]
            kept |= {start + int(stretch.argmin()), start + int(stretch.argmax())}
        index = np.array(sorted(kept))
        return Series(self.steps[index], self.values[index])

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class Alarm:
    """An alarm: where it rang and what it said."""

    step: int
    detector: str
    message: str
    attempt: int


def as_number(value: Any) -> float | None:
    """A logged value as a float; the event log writes non-finite ones as ``"nan"``, ``"inf"``, ``"-inf"``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
