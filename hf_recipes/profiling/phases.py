"""From a trace to the table: what each phase of a step takes in time and memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hf_recipes.profiling.intervals import Interval, Named, Timeline, common, innermost, merged, total, without
from hf_recipes.profiling.trace import Memory, Op, Trace, is_message

STEP = "step"
COMMUNICATION = "communication"
# Range in the trace → phase and part of it. A moment belongs to the innermost range; what only the step covers is
# other.
PARTS: dict[str, tuple[str, str]] = {
    "read": ("data", "reading, or waiting for workers"),
    "collate": ("data", "collation"),
    "transfer": ("data", "transfer"),
    "data": ("data", "sampling and counting"),
    "forward": ("forward", ""),
    "loss": ("loss", ""),
    "backward": ("backward", ""),
    "clip": ("optimizer", "clipping and watchers"),
    "optimizer": ("optimizer", "update"),
    COMMUNICATION: ("communication", ""),
    STEP: ("other", ""),
}
PHASES = tuple(dict.fromkeys(phase for phase, _ in PARTS.values()))
_DROPOUT = ("aten::dropout", "aten::native_dropout", "aten::native_dropout_backward", "aten::feature_dropout")


@dataclass(frozen=True)
class PhaseRow:
    """One row of the table. Times are seconds a step; `device_seconds` None on a CPU; `peak_bytes` the most memory held
    while the phase ran, None where nothing was recorded. `part` is empty for the whole phase."""

    phase: str
    part: str
    seconds: float
    share: float
    device_seconds: float | None
    peak_bytes: int | None


@dataclass(frozen=True)
class Operator:
    """One row of the list of operators: calls and seconds a step, without the operators it calls; share of all."""

    name: str
    calls: float
    seconds: float
    share: float


def step_windows(trace: Trace) -> list[Interval]:
    """The traced steps, µs."""
    return [(start, end) for start, end, name in trace.ranges if name == STEP]


def phase_timeline(trace: Trace) -> Timeline:
    """The traced steps cut into segments named as `PARTS`.

    Communication is what is exposed: time in which messages are under way and nothing is computed, on the device where
    there is one, else on the host. It is taken out of the phase it lies in.
    """
    segments = innermost(trace.ranges)
    exposed = without(_communication(trace), _computation(trace))
    if not exposed:
        return Timeline(segments)
    stretches = []
    for start, end, name in segments:
        waits = common([(start, end)], exposed)
        stretches += [Named(*wait, COMMUNICATION) for wait in waits]
        stretches += [Named(*rest, name) for rest in without([(start, end)], waits)]
    return Timeline(sorted(stretches))


def _communication(trace: Trace) -> list[Interval]:
    if trace.kernels:
        return merged((kernel.start, kernel.end) for kernel in trace.kernels if is_message(kernel.name))
    return merged((start, end) for start, end, _ in trace.messages)


def _computation(trace: Trace) -> list[Interval]:
    if trace.kernels:
        return merged((kernel.start, kernel.end) for kernel in trace.kernels if not is_message(kernel.name))
    return merged((op.start, op.end) for op in trace.ops if op.name.startswith("aten::"))


def phase_rows(trace: Trace, device: str, held_bytes: int) -> list[PhaseRow]:
    """The table, in the order of a step: each phase, followed by its parts where it has several.

    Args:
        trace: With at least one ``step`` range.
        device: ``cpu`` or ``cuda``: whose memory is told.
        held_bytes: What was held there before the trace began and is not in its count: on a CPU the allocator counts
            from the beginning of the trace, on a GPU from that of the process (0).
    """
    timeline = phase_timeline(trace)
    steps = len(step_windows(trace))
    host = _seconds(timeline.segments)
    on_device = _device_seconds(trace, timeline) if trace.kernels else None
    peaks = _peaks([reading for reading in trace.memory if reading.device == device], timeline.segments)
    whole = sum((on_device or host).values())
    rows = []
    for phase in PHASES:
        names = [name for name, (of_phase, _) in PARTS.items() if of_phase == phase]
        parts = [[name] for name in names if host[name] > 0] if len(names) > 1 else []
        for group in [names, *(parts if len(parts) > 1 else [])]:
            seconds = sum(host[name] for name in group)
            device_seconds = None if on_device is None else sum(on_device[name] for name in group)
            share = (seconds if device_seconds is None else device_seconds) / whole if whole else 0.0
            held = [peaks[name] for name in group if name in peaks]
            rows.append(
                PhaseRow(
                    phase,
                    PARTS[group[0]][1] if group is not names else "",
                    seconds / steps,
                    share,
                    None if device_seconds is None else device_seconds / steps,
                    max(held) + held_bytes if held else None,
                )
            )
    return rows


def _seconds(segments: Iterable[Named]) -> defaultdict[str, float]:
    seconds: defaultdict[str, float] = defaultdict(float)
    for start, end, name in segments:
        seconds[name] += (end - start) / 1e6
    return seconds


def _device_seconds(trace: Trace, timeline: Timeline) -> defaultdict[str, float]:
    """Device time by the phase that launched it; kernels that run side by side count once each phase."""
    busy: defaultdict[str, list[Interval]] = defaultdict(list)
    for kernel in trace.kernels:
        moment = kernel.start if kernel.launched is None else kernel.launched
        if name := COMMUNICATION if is_message(kernel.name) else timeline.at(moment):
            busy[name].append((kernel.start, kernel.end))
    computed = _computation(trace)
    if COMMUNICATION in busy:
        busy[COMMUNICATION] = without(merged(busy[COMMUNICATION]), computed)
    return defaultdict(float, {name: total(merged(stretches)) / 1e6 for name, stretches in busy.items()})


def _peaks(readings: Sequence[Memory], segments: Sequence[Named]) -> dict[str, int]:
    """Most bytes held during each name's segments, what was held when a segment began included."""
    peaks: dict[str, int] = {}
    held = place = 0
    for start, end, name in segments:
        while place < len(readings) and readings[place].at < start:
            held = readings[place].allocated
            place += 1
        highest = held
        while place < len(readings) and readings[place].at < end:
            held = readings[place].allocated
            highest = max(highest, held)
            place += 1
        peaks[name] = max(highest, peaks.get(name, 0))
    return peaks if readings else {}


def device_busy_share(trace: Trace) -> float | None:
    """Part of the traced steps in which the device ran at least one kernel; None where there is no device."""
    if not trace.kernels:
        return None
    windows = merged(step_windows(trace))
    busy = merged((kernel.start, kernel.end) for kernel in trace.kernels)
    return total(common(windows, busy)) / total(windows)


def dropout_share(trace: Trace) -> float:
    """Part of the traced steps spent in dropout operators; on a CPU their backward is a plain product, not seen."""
    windows = merged(step_windows(trace))
    spent = merged((op.start, op.end) for op in trace.ops if op.name in _DROPOUT)
    return total(common(windows, spent)) / total(windows)


def top_operators(trace: Trace, count: int = 10) -> list[Operator]:
    """The operators that take most time by themselves: kernels where there is a device, else host operators."""
    steps = len(step_windows(trace))
    if trace.kernels:
        calls = Counter(kernel.name for kernel in trace.kernels)
        seconds = _seconds(Named(kernel.start, kernel.end, kernel.name) for kernel in trace.kernels)
    else:
        calls = Counter(op.name for op in trace.ops)
        threads = _by_thread(trace.ops).values()
        seconds = _seconds(
            segment for ops in threads for segment in innermost(Named(op.start, op.end, op.name) for op in ops)
        )
    whole = sum(seconds.values())
    names = sorted(seconds, key=lambda name: -seconds[name])[:count]
    return [Operator(name, calls[name] / steps, seconds[name] / steps, seconds[name] / whole) for name in names]


def _by_thread(ops: Iterable[Op]) -> dict[int, list[Op]]:
    threads: defaultdict[int, list[Op]] = defaultdict(list)
    for op in ops:
        threads[op.thread].append(op)
    return threads
