"""The pure part of `ThroughputWatch`: where a step's time goes, and when that is worth an alarm. Clocks are inputs."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

_ROOM_IN_BUCKET = 1.25  # steps whose positions differ by less than this factor are compared with each other
_LEAST_HISTORY = 5
_HISTORY = 256


@dataclass(frozen=True)
class Moment:
    """What a process's clocks show, in seconds: `now`; `cpu` it has used; `queued` until others let it have a CPU."""

    now: float
    cpu: float
    queued: float = 0.0


@dataclass(frozen=True)
class StepTimes:
    """One optimizer step on this rank. `seconds` from its begin to its end; `wait` seconds before it spent getting
    batches, None where something else happened in between; `cpu_seconds` of this process within `seconds`, and
    `queued` seconds in which other processes had its CPU; `positions` and `supervised` tokens of all ranks."""

    seconds: float
    wait: float | None
    cpu_seconds: float
    queued: float
    positions: int
    supervised: int


class StepClock:
    """Cuts the time of a run into steps and the gaps between them. All times in seconds of one clock."""

    def __init__(self) -> None:
        self._free_since: float | None = None
        self._wait: float | None = None
        self._begun = Moment(0.0, 0.0)

    def other_work(self, now: float, *, hides_wait: bool) -> None:
        """Something between two steps has ended by now. `hides_wait`: how long it goes on for others is not known."""
        if self._free_since is not None:
            self._free_since = None if hides_wait else now

    def begin(self, moment: Moment) -> None:
        """The batches are here."""
        self._wait = None if self._free_since is None else moment.now - self._free_since
        self._begun = moment

    def end(self, moment: Moment, positions: int, supervised: int) -> StepTimes:
        """The step is done."""
        self._free_since = moment.now
        begun = self._begun
        cpu, queued = moment.cpu - begun.cpu, moment.queued - begun.queued
        return StepTimes(moment.now - begun.now, self._wait, cpu, queued, positions, supervised)


def speeds(steps: Sequence[StepTimes], threads: int) -> dict[str, float]:
    """Rates over some steps: evaluation, saving and logging are left out, waiting for batches is not.

    Args:
        steps: at least one.
        threads: that this process computes with.

    Returns:
        ``tokens_per_second`` (positions of all ranks, padding included), ``supervised_tokens_per_second``,
        ``step_seconds`` (mean), ``cpu_utilization`` (CPU seconds a thread-second within steps) and, where waiting was
        seen, ``data_wait_share`` of the time. Nothing for a clock too coarse.
    """
    timed = [step for step in steps if step.wait is not None] or list(steps)
    waited = sum(step.wait or 0.0 for step in timed)
    within = sum(step.seconds for step in timed)
    total = within + waited
    if total <= 0:
        return {}
    rates = {"step_seconds": total / len(timed)}
    if positions := sum(step.positions for step in timed):  # a model may take something else than tokens
        rates["tokens_per_second"] = positions / total
        rates["supervised_tokens_per_second"] = sum(step.supervised for step in timed) / total
    if timed[0].wait is not None:
        rates["data_wait_share"] = waited / total
    if within > 0:
        rates["cpu_utilization"] = sum(step.cpu_seconds for step in timed) / within / threads
    return rates


class _Series:
    """An unbroken series of steps with something wrong; rings once, when it has cost enough seconds."""

    def __init__(self, least_seconds: float) -> None:
        self.least_seconds = least_seconds
        self.running = self.told = False
        self.seconds = 0.0

    def add(self, wrong: bool, cost: float, cost_so_far: float) -> bool:
        """One more step; `cost_so_far` counts when it is the first of a series."""
        if not wrong:
            self.running = self.told = False
            return False
        self.seconds = self.seconds + cost if self.running else cost_so_far
        self.running = True
        rings = not self.told and self.seconds >= self.least_seconds
        self.told |= rings
        return rings


@dataclass(frozen=True)
class DataWait:
    """`share` of the time waited for batches (median of the last steps), `seconds` waited in this series."""

    share: float
    seconds: float


class DataWaitTrend:
    """Rings once a series when the median share of waiting in the last `window` steps is above `limit`, as soon as
    `least_seconds` were waited. The median, so that one slow gap (an epoch's first batch, a report written) is none."""

    def __init__(self, limit: float = 0.2, window: int = 20, least_seconds: float = 5.0) -> None:
        self.limit = limit
        self._gaps: deque[tuple[float, float]] = deque(maxlen=window)  # (waited, share)
        self._series = _Series(least_seconds)

    def see(self, step: StepTimes) -> DataWait | None:
        """Take one step; what to ring about, if anything."""
        whole = step.seconds + (step.wait or 0.0)
        if step.wait is None or whole <= 0:
            return None
        self._gaps.append((step.wait, step.wait / whole))
        if len(self._gaps) < (self._gaps.maxlen or 0):
            return None
        share = statistics.median(share for _, share in self._gaps)
        rings = self._series.add(share > self.limit, step.wait, sum(wait for wait, _ in self._gaps))
        return DataWait(share, self._series.seconds) if rings else None


@dataclass(frozen=True)
class Slower:
    """`factor` by which the last steps are slower than earlier ones of like size (median), `seconds` lost so far."""

    factor: float
    seconds: float


class SlowDown:
    """Rings once a series when the median of the last `window` steps takes more than `limit` times as long as earlier
    steps with about as many positions, as soon as `least_seconds` were lost.

    Half of the window must be slow, so noise of a few steps is none. A step counts as an earlier one only after
    `window` more have come and while nothing is wrong, so a slow-down cannot become the measure of itself.
    """

    def __init__(self, limit: float = 2.0, window: int = 25, least_seconds: float = 5.0) -> None:
        self.limit, self.window = limit, window
        self._history: dict[int, deque[float]] = {}
        self._pending: deque[tuple[int, float]] = deque()
        self._ratios: deque[tuple[float, float]] = deque(maxlen=window)  # (factor, seconds lost)
        self._series = _Series(least_seconds)

    def see(self, seconds: float, positions: int) -> Slower | None:
        """Take one step, without the time in which others had its CPU; what to ring about, if anything."""
        if not (math.isfinite(seconds) and seconds > 0):
            return None
        bucket = round(math.log(max(positions, 1), _ROOM_IN_BUCKET))
        verdict = self._judge(seconds, self._history.get(bucket, ()))
        self._pending.append((bucket, seconds))
        if len(self._pending) > self.window:
            known_bucket, known_seconds = self._pending.popleft()
            if not self._series.running:
                self._history.setdefault(known_bucket, deque(maxlen=_HISTORY)).append(known_seconds)
        return verdict

    def _judge(self, seconds: float, earlier: Sequence[float] | deque[float]) -> Slower | None:
        if len(earlier) < _LEAST_HISTORY:
            return None
        usual = statistics.median(earlier)
        self._ratios.append((seconds / usual, seconds - usual))
        if len(self._ratios) < self.window:
            return None
        factor = statistics.median(ratio for ratio, _ in self._ratios)
        rings = self._series.add(factor > self.limit, seconds - usual, sum(max(0.0, lost) for _, lost in self._ratios))
        return Slower(factor, self._series.seconds) if rings else None


def limited_by(
    data_wait: float | None, use: float | None, queued: float, device: str, target: float, most_wait: float
) -> str:
    """What keeps a run from being faster, as a sentence, with what to do in recipe keys; empty where nobody knows.

    Args:
        data_wait: share of the time that waited for batches.
        use: of the device, 0 to 1.
        queued: share of the time within steps in which other processes had the CPU.
        device: ``cuda``, ``cpu``, …
        target: the use to aim at.
        most_wait: the share of waiting that is too much.
    """
    if data_wait is not None and data_wait > most_wait:
        return f"Batches limit it: {MORE_BATCHES}."
    if use is None:
        return ""
    if use >= target:
        return f"The {'CPU' if device == 'cpu' else 'GPU'} is the limit, as it should be."
    if device == "cpu" and queued > most_wait:
        return f"Other processes have the CPU for {queued:.0%} of the time: let fewer run beside it."
    if device == "cpu":
        return (
            "The threads wait for each other: use as many as there are cores (OMP_NUM_THREADS), and a larger "
            "per_device_train_batch_size."
        )
    return (
        "The GPU waits for work between kernels: raise per_device_train_batch_size (with fewer "
        "gradient_accumulation_steps), set packing: true or torch_compile: true."
    )


MORE_BATCHES = (
    "raise dataloader_num_workers (4) with dataloader_prefetch_factor, set dataloader_persistent_workers: true, "
    "prepare the data once (hf-recipes prepare) instead of while training, and keep it on a local disk"
)
