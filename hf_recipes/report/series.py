"""Events → curves: numbers by step, replays after a resume taken out, non-finite values kept apart. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]
Point = tuple[int, float]


@dataclass(frozen=True)
class Series:
    """One curve: finite `points` by ascending step, and the steps at which the value was not finite."""

    name: str
    points: list[Point]
    bad: list[tuple[int, str]]

    def segments(self) -> list[list[Point]]:
        """The points in runs that no non-finite value interrupts: a line must not bridge a NaN."""
        parts: list[list[Point]] = [[]]
        for step, value in sorted([*self.points, *((step, None) for step, _ in self.bad)], key=lambda item: item[0]):
            if value is None:
                parts.append([])
            else:
                parts[-1].append((step, value))
        return [part for part in parts if part]

    def __bool__(self) -> bool:
        return bool(self.points or self.bad)


@dataclass(frozen=True)
class Alarm:
    """An alarm: where it rang and what it said."""

    step: int
    detector: str
    message: str
    attempt: int


def timeline(events: Iterable[Event]) -> list[Event]:
    """The events that led to the run's present state.

    An attempt that resumes at step k replays what came after k: events of earlier attempts beyond k are left out, also
    where the resumed run has not come that far again, and at equal steps the later attempt's stand.
    """
    # By attempt, whatever the clocks of the machines said that they ran on.
    events = sorted((event for event in events if _is_step(event.get("step"))), key=_attempt)
    starts = _starts(events)
    return [
        event
        for event in events
        if all(event["step"] <= start for attempt, start in starts.items() if attempt > _attempt(event))
    ]


def _starts(events: Sequence[Event]) -> dict[int, int]:
    """Attempt → step it began at: that of its begin event, else the one before its first event."""
    starts: dict[int, int] = {}
    for event in events:
        attempt, step = _attempt(event), event["step"]
        start = step if event.get("kind") == "begin" else max(step - 1, 0)
        starts[attempt] = min(start, starts.get(attempt, start))
    return starts


def series(events: Iterable[Event], kind: str, name: str) -> Series:
    """The values called `name` in events of `kind`; the last one of a step stands."""
    values: dict[int, float] = {}
    for event in events:
        value = as_number(event.get(name))
        if event.get("kind") == kind and value is not None:
            values[event["step"]] = value
    ordered = sorted(values.items())
    return Series(
        name=name,
        points=[(step, value) for step, value in ordered if math.isfinite(value)],
        bad=[(step, str(value)) for step, value in ordered if not math.isfinite(value)],
    )


def throughput(events: Sequence[Event]) -> Series:
    """Tokens per second: as logged, else from the running token count and the times of two logs of one attempt.

    In the second form, stretches with an evaluation or a save in between are left out: that time is not training.
    """
    logged = series(events, "log", "tokens_per_second")
    if logged:
        return logged
    derived: list[Event] = []
    before: Event | None = None
    for event in events:
        if event.get("kind") in ("eval", "save", "begin"):
            before = None
        elif event.get("kind") == "log" and as_number(event.get("num_tokens")) is not None:
            seconds = _difference(before, event, "time")
            tokens = _difference(before, event, "num_tokens")
            if seconds > 0 and tokens > 0:
                derived.append({"kind": "log", "step": event["step"], "tokens_per_second": tokens / seconds})
            before = event
    return series(derived, "log", "tokens_per_second")


def _difference(before: Event | None, after: Event, name: str) -> float:
    """After minus before; 0 where there is no earlier value of the same attempt."""
    if before is None or _attempt(before) != _attempt(after):
        return 0.0
    earlier, later = as_number(before.get(name)), as_number(after.get(name))
    return later - earlier if earlier is not None and later is not None else 0.0


def alarms(events: Iterable[Event]) -> list[Alarm]:
    """All alarms of all attempts, in the order they rang."""
    return [
        Alarm(event["step"], str(event.get("detector", "")), str(event.get("message", "")), _attempt(event))
        for event in events
        if event.get("kind") == "alarm" and _is_step(event.get("step"))
    ]


def as_number(value: Any) -> float | None:
    """A logged value as a float; the event log writes non-finite ones as ``"nan"``, ``"inf"``, ``"-inf"``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _attempt(event: Event) -> int:
    attempt = event.get("attempt")
    return attempt if isinstance(attempt, int) else 1


def _is_step(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
