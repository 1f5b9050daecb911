"""Peak memory of a stretch of code on the CPU, from the profiler's memory events: every allocation and release of the
tensor allocator, cumulated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

_MARK = "phase: "


@dataclass
class Watched:
    """What was seen: bytes above the start by phase (the highest point), and the phases' marks."""

    peaks: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    largest: list[tuple[int, str]] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """The highest point of all phases."""
        return max(self.peaks.values(), default=0)


def mark(phase: str) -> None:
    """Begin a phase: what is allocated from now on belongs to it."""
    with torch.profiler.record_function(_MARK + phase):
        pass


@contextmanager
def watching() -> Iterator[Watched]:
    """Follow the CPU allocator; what was allocated before counts nothing, whether released within or not."""
    seen = Watched()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        yield seen
    _cumulate(profile.profiler.kineto_results.events(), seen)


def _cumulate(events: Any, seen: Watched) -> None:
    points: list[tuple[int, str, int]] = []
    for event in events:
        name = event.name()
        if name == "[memory]":
            points.append((event.start_ns(), "", event.nbytes()))
        elif name.startswith(_MARK):
            points.append((event.start_ns(), name.removeprefix(_MARK), 0))
    live, phase = 0, "before"
    for _, name, size in sorted(points, key=lambda point: point[0]):
        if name:
            seen.ends[phase] = live
            phase = name
        live += size
        seen.peaks[phase] = max(seen.peaks.get(phase, 0), live)
    seen.ends[phase] = live
