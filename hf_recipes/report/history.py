"""Events → what stands of a run: its curves, and the rare events beside them. Pure, and fed one event at a time.

Numbers go into columns as they come: a million log lines take some tens of megabytes, not a gigabyte of dicts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np

from hf_recipes.report.series import Alarm, Series, as_number

Event = dict[str, Any]
_OWN = frozenset(("schema", "attempt", "rank", "time", "kind", "step"))
_BREAKS = ("eval", "save", "begin")  # what takes time between two logs
_LATEST = 1e11  # Unix seconds; what is later is no date of a run
_LARGEST_STEP = 2**53  # beyond it, browsers cannot count
DERIVED = "tokens_per_second (derived)"


class History:
    """A run as its events tell it.

    An attempt that resumes at step k replays what came after k: what earlier attempts logged beyond k is left out, also
    where the resumed run has not come that far again, and at equal steps the later attempt's stand.

    Attributes:
        events: all events but "log" and "eval", of all attempts, in the order they came.
        last_time: Unix seconds of the newest event, 0 without one; `last_attempt` is its attempt.
        longest_silence: the longest time between two events, in seconds.
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = []
        self.last_time, self.last_attempt, self.longest_silence = 0.0, 1, 0.0
        # kind → name → attempt → steps, values
        self._columns: dict[str, dict[str, dict[int, tuple[array[int], array[float]]]]] = {"log": {}, "eval": {}}
        self._starts: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._times: dict[int, tuple[float, float]] = {}
        self._before: Event | None = None
        for event in events:
            self.add(event)

    def add(self, event: Event) -> bool:
        """Take in one event; False when it has no step, and so no place."""
        step, kind, attempt = event.get("step"), event.get("kind"), _attempt(event)
        if not isinstance(step, int) or isinstance(step, bool) or not -_LARGEST_STEP < step < _LARGEST_STEP:
            return False
        start = step if kind == "begin" else max(step - 1, 0)
        if start < self._starts.get(attempt, _LARGEST_STEP):
            self._starts[attempt] = start
        if step > self._ends.get(attempt, -_LARGEST_STEP):
            self._ends[attempt] = step
        self._see_time(attempt, event.get("time"))
        if kind == "log" or kind == "eval":
            self._see_values(kind, attempt, step, event)
        else:
            self.events.append(event)
        if kind in _BREAKS:
            self._before = None
        elif "num_tokens" in event and kind == "log":
            self._see_tokens(attempt, step, event)
        return True

    def _see_time(self, attempt: int, value: Any) -> None:
        moment = as_number(value)
        if moment is None or not abs(moment) < _LATEST:
            return
        first, last = self._times.get(attempt, (moment, moment))
        if moment - last > self.longest_silence:
            self.longest_silence = moment - last
        self._times[attempt] = (min(first, moment), max(last, moment))
        if moment >= self.last_time:
            self.last_time, self.last_attempt = moment, attempt

    def _see_values(self, kind: str, attempt: int, step: int, event: Event) -> None:
        columns = self._columns[kind]
        for name, item in event.items():
            if name in _OWN:
                continue
            value = item if type(item) is float else as_number(item)
            if value is not None:
                self._append(columns, name, attempt, step, value)

    def _append(self, columns: dict[str, Any], name: str, attempt: int, step: int, value: float) -> None:
        try:
            steps, values = columns[name][attempt]
        except KeyError:
            steps, values = columns.setdefault(name, {}).setdefault(attempt, (array("q"), array("d")))
        steps.append(step)
        values.append(value)

    def _see_tokens(self, attempt: int, step: int, event: Event) -> None:
        """Tokens per second from two logs of one attempt; time with an evaluation or a save in it is not training."""
        seconds, tokens = (_difference(self._before, event, name) for name in ("time", "num_tokens"))
        if seconds > 0 and tokens > 0:
            self._append(self._columns["log"], DERIVED, attempt, step, tokens / seconds)
        self._before = {name: event.get(name) for name in ("time", "num_tokens", "attempt")}

    def _limit(self, attempt: int) -> float:
        """The last step that stands of an attempt: later ones have replayed the rest."""
        return min((start for other, start in self._starts.items() if other > attempt), default=float("inf"))

    def names(self, kind: str) -> list[str]:
        """What was logged as numbers in events of `kind`, in order of first sight."""
        return [name for name in self._columns[kind] if name != DERIVED]

    def series(self, kind: str, name: str) -> Series:
        """The values called `name` in events of `kind`, as far as they stand."""
        by_attempt = self._columns[kind].get(name, {})
        parts = [(np.zeros(0, dtype=np.int64), np.zeros(0))]
        for attempt in sorted(by_attempt):
            steps, values = (np.array(column) for column in by_attempt[attempt])
            kept = steps <= self._limit(attempt)
            parts.append((steps[kept], values[kept]))
        return Series.ordered(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def throughput(self) -> Series:
        """Tokens per second: as logged, else derived from the running token count and the clock."""
        logged = self.series("log", "tokens_per_second")
        return logged if len(logged) else self.series("log", DERIVED)

    def standing(self) -> list[Event]:
        """The events but "log" and "eval" that led to the run's present state."""
        return [event for event in self.events if event["step"] <= self._limit(_attempt(event))]

    def alarms(self, standing: bool = False) -> list[Alarm]:
        """The alarms in the order they rang: of all attempts, or those that stand."""
        return [
            Alarm(event["step"], str(event.get("detector", "")), str(event.get("message", "")), _attempt(event))
            for event in (self.standing() if standing else self.events)
            if event.get("kind") == "alarm"
        ]

    def of_kind(self, kind: str) -> list[Event]:
        """The events of one kind that stand."""
        return [event for event in self.standing() if event.get("kind") == kind]

    @property
    def last_step(self) -> int | None:
        """Where the newest attempt is; None without events."""
        return self._ends[max(self._ends)] if self._ends else None

    @property
    def seconds(self) -> float | None:
        """Wall time of all attempts together, from the first event to the last of each."""
        return sum(last - first for first, last in self._times.values()) if self._times else None

    @property
    def max_steps(self) -> int | None:
        """The steps planned, as the newest begin event says."""
        begins = [event for event in self.events if event.get("kind") == "begin"]
        planned = begins[-1].get("max_steps") if begins else None
        return planned if isinstance(planned, int) and planned > 0 else None


def _difference(before: Event | None, after: Event, name: str) -> float:
    """After minus before; 0 where there is no earlier value of the same attempt."""
    if before is None or _attempt(before) != _attempt(after):
        return 0.0
    earlier, later = as_number(before.get(name)), as_number(after.get(name))
    return later - earlier if earlier is not None and later is not None else 0.0


def _attempt(event: Event) -> int:
    attempt = event.get("attempt")
    return attempt if isinstance(attempt, int) else 1
