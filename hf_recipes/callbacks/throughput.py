"""`ThroughputWatch`: tokens a second, where the time goes, and what keeps the run from being faster."""

from __future__ import annotations

import statistics
import time
from collections import deque
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import TrainerCallback

from hf_recipes.callbacks.gradients import GradientGate
from hf_recipes.callbacks.memory_watch import memory_total_bytes
from hf_recipes.callbacks.metrics_feed import MetricGiver
from hf_recipes.callbacks.utilization import (
    MORE_BATCHES,
    DataWait,
    DataWaitTrend,
    Moment,
    SlowDown,
    Slower,
    StepClock,
    StepTimes,
    limited_by,
    speeds,
)
from hf_recipes.callbacks.watching import alarm, note
from hf_recipes.core.flops import Work, training_flops
from hf_recipes.core.matmul_weights import matmul_weights
from hf_recipes.core.peaks import published_peak

_LOGS_KEPT = 1000
_SCHEDULER_STATISTICS = Path("/proc/thread-self/schedstat")


class ThroughputWatch(MetricGiver, TrainerCallback):
    """Measures every step by the host's clock (no sync of its own) and says when batches come too slowly or the run
    slows down for good. The clock is this rank's, the tokens are those of all ranks; rank 0 tells.

    Args:
        target: use of the device to aim at; told at the end.
        max_data_wait: share of the time spent waiting for batches that is too much.
        peak_flops: what one device could do a second; by default known for the GPUs in `core.peaks`, else unknown.

    Metrics, each over the steps since the last log, without evaluation, saving and logging:
    `tokens_per_second` (positions computed, padding included), `supervised_tokens_per_second` (labels other than −100),
    `step_seconds`, `data_wait_share`, `mfu` (the products of weights and positions, padding included and attention's
    own left out, of the peak; only where that is known), `gpu_utilization` (at the moment of the log, where NVML is
    there), `cpu_utilization` (of this process's compute threads, within steps), `memory_gb` (peak allocated on the GPU
    since the last log, which resets torch's peak counter; else resident) and `memory_total_gb` (10⁹ bytes).

    Events: "alarm" with `detector` "throughput", `verdict` "data_wait" (`data_wait_share`, `seconds`) or "slower"
    (`factor`, `seconds`); "note" at the end with the medians and `limit`. Nothing is kept over a resume: how fast
    another process on perhaps another machine was is no measure.
    """

    def __init__(self, target: float = 0.8, max_data_wait: float = 0.2, peak_flops: float | None = None) -> None:
        self.target, self.max_data_wait, self.peak_flops = target, max_data_wait, peak_flops
        self._clock = StepClock()  # evaluations may come before any training

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate = GradientGate.open(args, kwargs["model"], kwargs["optimizer"])
        self._process = psutil.Process()
        self._device = args.device
        self._peak = self._peak_of_all_ranks(args, kwargs["model"])
        self._arithmetic = _flops_a_token(kwargs["model"]) if self._peak else None
        self._clock = StepClock()
        self._data_wait, self._slow_down = DataWaitTrend(self.max_data_wait), SlowDown()
        self._positions = self._supervised = 0
        self._queued = self._within = 0.0
        self._steps: list[StepTimes] = []
        self._metrics: dict[str, float] = {}
        self._logged: deque[dict[str, float]] = deque(maxlen=_LOGS_KEPT)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock.other_work(time.perf_counter(), hides_wait=False)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock.begin(_now())

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        shares = self._gate.measure(state.global_step, kwargs["model"]).by_rank
        self._positions = sum(share.positions for share in shares)
        self._supervised = sum(share.supervised_tokens for share in shares)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = self._clock.end(_now(), self._positions, self._supervised)
        self._queued, self._within = self._queued + step.queued, self._within + step.seconds
        self._steps.append(step)
        if waited := self._data_wait.see(step):
            self._alarm_data_wait(args, state, waited)
        if slower := self._slow_down.see(step.seconds - step.queued, step.positions):
            self._alarm_slower(args, state, slower)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_log(args, state, control, **kwargs)
        # Callbacks behind this one may take their time. Where every step is logged there is no other gap to look at.
        self._clock.other_work(time.perf_counter(), hides_wait=state.logging_steps > 1)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock.other_work(time.perf_counter(), hides_wait=True)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._clock.other_work(time.perf_counter(), hides_wait=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate.close(kwargs["model"])
        self.metrics()  # the steps after the last log
        if any("tokens_per_second" in each for each in self._logged):
            self._tell_the_end(args, state)

    def metrics(self) -> dict[str, float]:
        if self._steps:
            self._metrics = self._metrics_now()
            self._logged.append(self._metrics)
            self._steps = []
        return dict(self._metrics)

    def _metrics_now(self) -> dict[str, float]:
        rates = speeds(self._steps, torch.get_num_threads())
        if self._arithmetic and self._peak and "tokens_per_second" in rates:
            body, head = self._arithmetic
            flops = body * rates["tokens_per_second"] + head * rates["supervised_tokens_per_second"]
            rates["mfu"] = flops / self._peak
        return {**rates, **_gpu_utilization(self._device), **_memory(self._process, self._device)}

    def _peak_of_all_ranks(self, args: Any, model: Any) -> float | None:
        one = self.peak_flops or _published_flops(args, model)
        return one * args.world_size if one else None

    def _alarm_data_wait(self, args: Any, state: Any, waited: DataWait) -> None:
        sentence = (
            f"Step {state.global_step}: {waited.share:.0%} of the time goes into waiting for batches "
            f"({waited.seconds:.1f} s in this stretch; at most {self.max_data_wait:.0%} is fine). What to do: "
            f"{MORE_BATCHES}."
        )
        values = {"data_wait_share": waited.share, "seconds": waited.seconds}
        alarm(args, state, state.global_step, "throughput", sentence, verdict="data_wait", **values)

    def _alarm_slower(self, args: Any, state: Any, slower: Slower) -> None:
        sentence = (
            f"Step {state.global_step}: steps take {slower.factor:.1f} times as long as earlier ones of the same size "
            f"({slower.seconds:.1f} s lost so far). What to do: see whether another process uses the device "
            "(nvidia-smi, top), whether it throttles from heat, and whether something is kept from step to step; if "
            "it stays, stop and resume from the last checkpoint."
        )
        values = {"factor": slower.factor, "seconds": slower.seconds}
        alarm(args, state, state.global_step, "throughput", sentence, verdict="slower", **values)

    def _tell_the_end(self, args: Any, state: Any) -> None:
        medians = {
            name: statistics.median(each[name] for each in self._logged if name in each)
            for name in ("tokens_per_second", "step_seconds", "data_wait_share", "mfu", *_USES.values())
            if any(name in each for each in self._logged)
        }
        device = self._device.type
        use = medians.get(_USES.get(device, ""))
        queued = self._queued / self._within if self._within > 0 else 0.0
        limit = limited_by(medians.get("data_wait_share"), use, queued, device, self.target, self.max_data_wait)
        parts = [f"{medians['tokens_per_second']:,.0f} tokens/s (padding included)"]
        if "data_wait_share" in medians:
            parts.append(f"{medians['data_wait_share']:.0%} of the time waiting for batches")
        if "mfu" in medians:
            parts.append(f"MFU {medians['mfu']:.0%}")
        if use is not None:
            parts.append(f"{'CPU threads' if device == 'cpu' else 'GPU'} {use:.0%} in use (target {self.target:.0%})")
        sentence = f"Throughput, medians: {', '.join(parts)}. {limit}".rstrip()
        note(args, state, "throughput", sentence, **medians, target=self.target, limit=limit)


def _now() -> Moment:
    return Moment(time.perf_counter(), time.process_time(), _queued_seconds())


def _queued_seconds() -> float:
    """How long this thread was ready to run while others had its CPU, as Linux counts it; 0 elsewhere."""
    try:
        return int(_SCHEDULER_STATISTICS.read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


_USES = {"cpu": "cpu_utilization", "cuda": "gpu_utilization"}


def _flops_a_token(model: Any) -> tuple[float, float] | None:
    """FLOPs that a position asks of the body, and a supervised token of the head besides; None for a model that is no
    causal language model of `transformers`, whose arithmetic is not known here."""
    try:
        weights = matmul_weights(model)
    except (AttributeError, TypeError):
        return None
    return training_flops(weights, Work(1, 0, 0)), training_flops(weights, Work(0, 1, 0))


def _published_flops(args: Any, model: torch.nn.Module) -> float | None:
    if args.device.type != "cuda":
        return None
    first = next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), torch.float32)
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else str(first).removeprefix("torch.")
    name = torch.cuda.get_device_name(args.device)
    peak = published_peak(name, dtype, tf32=torch.backends.cuda.matmul.allow_tf32)
    return peak.flops if peak else None


def _gpu_utilization(device: torch.device) -> dict[str, float]:
    """Of the last moments, by NVML; nothing where that is absent."""
    if device.type != "cuda":
        return {}
    try:
        return {"gpu_utilization": torch.cuda.utilization(device) / 100}
    except (ModuleNotFoundError, RuntimeError):  # no pynvml, or no driver that answers
        return {}


def _memory(process: psutil.Process, device: torch.device) -> dict[str, float]:
    if device.type == "cuda":
        used = torch.cuda.max_memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
    else:
        used = process.memory_info().rss
    return {"memory_gb": used / 1e9, "memory_total_gb": memory_total_bytes(device) / 1e9}
