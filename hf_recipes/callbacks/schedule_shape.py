"""The pure core of `ScheduleWatch`: what a learning-rate schedule looks like, and whether the run follows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Fault = Literal["zero", "peak_not_reached", "ends_early", "cut_off"]
RateKind = Literal["fine", "off_plan", "jump", "stale"]

GUIDE_WARM_UP = (0.03, 0.05)
GUIDE_END = 0.1
"""Warm-up share and end of the schedule by the field guides."""

_MOST_POINTS = 2000
_END_RANGE = (0.05, 0.2)  # about a tenth
_AT_PEAK = 1 - 1e-6
_NOTHING = 1e-6  # of the peak
_LENGTH_RANGE = (0.95, 1.1)  # of the run, that a schedule's length may have
_JUMP = 2.0
_ABOVE_PLAN = 1.01


@dataclass(frozen=True)
class ScheduleShape:
    """A schedule over a run of `max_steps` updates, in multiples of the base learning rate.

    `peak` is the highest multiple that an update gets, `warm_up_steps` the updates before the first at it, `end` the
    multiple after the last update over the peak, `zero_from` the first of an unbroken series of updates up to the last
    one whose rate is 0. `rises_to_the_end`: it has not come to its peak when the run ends.
    """

    max_steps: int
    peak: float
    warm_up_steps: int
    end: float
    zero_from: int | None
    rises_to_the_end: bool
    constant: bool
    falls_only: bool

    @property
    def warm_up_share(self) -> float:
        """Updates before the peak, of all."""
        return self.warm_up_steps / self.max_steps


def shape_of(multiple: Callable[[int], float], max_steps: int) -> ScheduleShape:
    """Evaluate a schedule ahead, at about 2,000 points however long the run is.

    Args:
        multiple: the multiple of the base rate after so many updates; the first update gets `multiple(0)`.
        max_steps: updates of the run, at least 1.
    """
    stride = max(1, math.ceil(max_steps / _MOST_POINTS))
    steps = sorted({*range(0, max_steps, stride), max_steps - 1})
    values = [multiple(step) for step in steps]
    after = multiple(max_steps)
    peak = max(values)
    at_peak = next(index for index, value in enumerate(values) if value >= _AT_PEAK * peak)
    between = range(steps[at_peak - 1] + 1 if at_peak else 0, steps[at_peak])
    warm_up = next((step for step in between if multiple(step) >= _AT_PEAK * peak), steps[at_peak])
    nothing = _NOTHING * peak
    zeros = next((count for count, value in enumerate(reversed(values)) if value > nothing), len(values))
    return ScheduleShape(
        max_steps=max_steps,
        peak=peak,
        warm_up_steps=warm_up,
        end=after / peak if peak > 0 else 0.0,
        zero_from=steps[len(steps) - zeros] if zeros else None,
        rises_to_the_end=after > peak * (1 + _NOTHING),
        constant=all(abs(value - peak) <= nothing for value in values),
        falls_only=all(later <= earlier + nothing for earlier, later in pairwise(values[at_peak:])),
    )


def fault_of(shape: ScheduleShape, length: int | None) -> Fault | None:
    """What is wrong with a schedule, the worst first; `length`: the updates it was laid out for, if it tells."""
    if shape.peak <= 0:
        return "zero"
    if shape.rises_to_the_end:
        return "peak_not_reached"
    if length is not None and length < _LENGTH_RANGE[0] * shape.max_steps - 1:
        return "ends_early"
    if shape.zero_from is not None and shape.zero_from < 0.9 * shape.max_steps - 1:
        return "ends_early"
    if length is not None and length > _LENGTH_RANGE[1] * shape.max_steps + 1:
        return "cut_off"
    return None


def warm_up_is_usual(shape: ScheduleShape) -> bool:
    """Whether the warm-up takes 3 to 5 % of the run, to the step; a run too short for one step of it needs none."""
    low, high = (share * shape.max_steps for share in GUIDE_WARM_UP)
    return low < 1 or math.floor(low) <= shape.warm_up_steps <= math.ceil(high)


def end_is_usual(shape: ScheduleShape) -> bool:
    """Whether the schedule ends at about a tenth of its peak."""
    return _END_RANGE[0] <= shape.end <= _END_RANGE[1]


@dataclass(frozen=True)
class RateVerdict:
    """What one step's learning rate was; `first` marks the first of an unbroken series of its kind.

    `planned` is what the schedule would give this step, `before` the rate of the step before.
    """

    kind: RateKind
    step: int
    rate: float
    first: bool
    planned: float | None
    before: float | None


class RateTrack:
    """Follows the learning rate from step to step.

    Against a plan: a rate above it is off the plan; one below it is somebody's decision. Without a plan: a rise to more
    than twice the rate of the step before, once the rate has begun to fall, is a jump.
    """

    def __init__(self) -> None:
        self.last_step = 0
        self.last_rate: float | None = None
        self.first_rate: float | None = None
        self.peak = 0.0
        self.peak_step = 0
        self.has_fallen = False
        self.last_kind: str = "fine"
        self.told = 0

    def see(self, step: int, rate: float, planned: float | None, *, may_jump: bool = False) -> RateVerdict:
        """Judge the rate of one update.

        Args:
            step: number of the update, from 1.
            rate: its learning rate.
            planned: the schedule's, where it can be known.
            may_jump: the schedule restarts by itself.
        """
        before = self.last_rate
        if step <= self.last_step:
            return RateVerdict("stale", step, rate, False, planned, before)
        kind: RateKind = "fine"
        if planned is not None:
            kind = "off_plan" if rate > _ABOVE_PLAN * planned + 1e-15 else "fine"
        elif before is not None and not may_jump:
            kind = "jump" if self.has_fallen and rate > _JUMP * before else "fine"
        first = kind != "fine" and kind != self.last_kind
        self.told += first
        self.last_kind = kind
        self._learn(step, rate)
        return RateVerdict(kind, step, rate, first, planned, before)

    def _learn(self, step: int, rate: float) -> None:
        self.has_fallen = self.has_fallen or (self.last_rate is not None and rate < self.last_rate)
        if rate > self.peak / _AT_PEAK or not self.peak_step:
            self.peak, self.peak_step = rate, step
        self.first_rate = rate if self.first_rate is None else self.first_rate
        self.last_step, self.last_rate = step, rate

    def state_dict(self) -> dict[str, Any]:
        """Everything seen, as JSON-safe data."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        vars(self).update(state)


def main_group(base_rates: Sequence[float]) -> int:
    """The parameter group that is watched: the one with the highest base rate."""
    return max(range(len(base_rates)), key=lambda group: base_rates[group])
