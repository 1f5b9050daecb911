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
    results = profile.profiler.kineto_results
    _cumulate(_marks(results.events()), _changes(results.experimental_event_tree()), seen)


def _marks(events: Any) -> list[tuple[int, str]]:
    """When each phase began."""
    named = ((event.start_ns(), event.name()) for event in events)
    return sorted((time, name.removeprefix(_MARK)) for time, name in named if name.startswith(_MARK))


def _changes(roots: Any) -> list[tuple[int, int, int]]:
    """Allocations (bytes above 0) and releases: time, address, bytes."""
    found, waiting = [], list(roots)
    while waiting:
        node = waiting.pop()
        waiting += node.children
        if node.tag == torch._C._profiler._EventType.Allocation:
            found.append((node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size))
    return sorted(found, key=lambda change: change[0])


def _cumulate(marks: list[tuple[int, str]], changes: list[tuple[int, int, int]], seen: Watched) -> None:
    """A thread that is not followed (gloo's) may release what a followed one allocated: it is known to be gone when its
    address is given away again."""
    held: dict[int, int] = {}
    live, phase, waiting = 0, "before", list(reversed(marks))
    for time, address, size in changes:
        while waiting and waiting[-1][0] <= time:
            seen.ends[phase] = live
            phase = waiting.pop()[1]
            seen.peaks[phase] = max(seen.peaks.get(phase, 0), live)
        live += size - (held.pop(address, 0) if size > 0 else 0)
        if size > 0:
            held[address] = size
        else:
            held.pop(address, None)
        seen.peaks[phase] = max(seen.peaks.get(phase, 0), live)
    seen.ends[phase] = live
