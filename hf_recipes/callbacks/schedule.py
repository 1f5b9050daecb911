"""`ScheduleWatch`: the learning-rate schedule, looked at before the first step, and followed from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from accelerate.scheduler import AcceleratedScheduler
from accelerate.state import AcceleratorState
from accelerate.utils.deepspeed import DeepSpeedSchedulerWrapper
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

from hf_recipes.callbacks.schedule_shape import (
    GUIDE_END,
    GUIDE_WARM_UP,
    Fault,
    RateTrack,
    RateVerdict,
    ScheduleShape,
    end_is_usual,
    fault_of,
    main_group,
    shape_of,
    warm_up_is_usual,
)
from hf_recipes.callbacks.watching import Resumable, alarm, note

_USUAL = "warmup_steps: 0.03, lr_scheduler_type: cosine_with_min_lr, lr_scheduler_kwargs: {min_lr_rate: 0.1}"


@dataclass(frozen=True)
class _Plan:
    """A schedule that can be evaluated ahead: base rate, multiple after so many updates, updates it is laid out for."""

    base_rate: float
    multiple: Callable[[int], float]
    length: int | None
    scheduler: LambdaLR
    positions_a_step: int

    def rate(self, updates: int) -> float:
        return self.base_rate * self.multiple(updates)

    def updates_made(self) -> int:
        return int(self.scheduler.last_epoch) // self.positions_a_step

    def same_from(self, step: int, max_steps: int) -> bool:
        """Whether starting anew would give what is planned from `step` on, as a constant rate does."""
        rest = range(0, max_steps - step, 1 + (max_steps - step) // 100)
        return all(math.isclose(self.rate(ahead), self.rate(step + ahead), rel_tol=0.01) for ahead in rest)


class ScheduleWatch(Resumable, TrainerCallback):
    """Says before the first step what is wrong or unusual in the schedule, and while training when the rate leaves it.

    The schedule is evaluated ahead without being touched where it is a `LambdaLR`, as all of transformers' named ones
    are but reduce-on-plateau; others are only followed. A rate below the plan is somebody's decision and no alarm.

    Events: "alarm" with `detector` "schedule" and `verdict`: zero (the rate is 0 in the whole run), peak_not_reached
    (the warm-up is longer than the run), ends_early, cut_off (the schedule's length is not the run's), with the fields
    of `ScheduleShape` and `length`; off_plan, jump, with `learning_rate`, `planned`, `before`. "note" at the start when
    the warm-up is not 3 to 5 % of the run or the end not about a tenth of the peak, and at the end with
    `peak_learning_rate`, `peak_step`, `warm_up_share`, `end`.
    """

    detector: RateTrack

    def __init__(self) -> None:
        self.detector = self.new_detector()

    def settings(self) -> dict[str, Any]:
        return {}

    def new_detector(self) -> RateTrack:
        return RateTrack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(state)
        self._plan = _plan_of(kwargs.get("lr_scheduler"))
        self._restarts = _restarts(kwargs.get("lr_scheduler"))
        self._told_lost = False
        if self._plan is None or state.max_steps < 1:
            return
        shape = shape_of(self._plan.multiple, state.max_steps)
        fault = fault_of(shape, self._plan.length) if self._plan.base_rate > 0 else "zero"
        if fault is not None:
            sentence = f"Before step {state.global_step + 1}: {_fault(fault, shape, self._plan, args)}"
            values = {"verdict": fault, "length": self._plan.length, **asdict(shape)}
            alarm(args, state, state.global_step, "schedule", sentence, **values)
        elif state.global_step == 0 and (unusual := _unusual(shape)):
            note(args, state, "schedule", f"Learning-rate schedule: {unusual}", **asdict(shape))
        self._look_for_lost_state(args, state, self._plan)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = kwargs["optimizer"]
        group = main_group([_base_rate(each) for each in optimizer.param_groups])
        rate = _on_host(optimizer.param_groups[group]["lr"])
        if rate is None:
            return
        planned = None
        if self._plan is not None:
            planned = self._plan.rate(self._updates(state.global_step, self._plan, optimizer))
        verdict = self.detector.see(state.global_step + 1, rate, planned, may_jump=self._restarts)
        if verdict.first and not self._told_lost:
            values = {"verdict": verdict.kind, "learning_rate": rate, "planned": planned, "before": verdict.before}
            alarm(args, state, verdict.step, "schedule", f"Step {verdict.step}: {_departure(verdict)}", **values)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        track = self.detector
        if track.last_rate is None or not track.peak:
            note(args, state, "schedule", "No learning rate above 0 could be seen in this run.")
            return
        share, end = (track.peak_step - 1) / max(state.max_steps, 1), track.last_rate / track.peak
        stopped = f" (the run ended at step {state.global_step} of {state.max_steps})"
        note(
            args,
            state,
            "schedule",
            f"Learning rate: peak {track.peak:.3g} reached at step {track.peak_step} (warm-up {share:.1%}), last "
            f"{track.last_rate:.3g}, {end:.2g} of the peak{stopped if state.global_step < state.max_steps else ''}.",
            peak_learning_rate=track.peak,
            peak_step=track.peak_step,
            warm_up_share=share,
            end=end,
        )

    def _updates(self, global_step: int, plan: _Plan, optimizer: Any) -> int:
        """How far the schedule should be: a loss scaler that skips updates keeps it back, and may."""
        scaled = getattr(optimizer, "scaler", None) is not None
        return min(global_step, plan.updates_made()) if scaled and not self._told_lost else global_step

    def _look_for_lost_state(self, args: Any, state: Any, plan: _Plan) -> None:
        step = state.global_step
        if not step or plan.updates_made() or plan.same_from(step, state.max_steps):
            return
        self._told_lost = True
        sentence = (
            f"Before step {step + 1}: the run resumes after step {step}, but its learning-rate schedule stands at its "
            f"start: it goes on with {plan.rate(1):.3g} where {plan.rate(step):.3g} is planned. The checkpoint has no "
            "scheduler.pt, or it was not read: resume from one that has it."
        )
        values = {"verdict": "off_plan", "learning_rate": plan.rate(1), "planned": plan.rate(step)}
        alarm(args, state, step, "schedule", sentence, **values)


def peak_share(optimizer: Any) -> float:
    """The highest learning rate of any parameter group over its base rate; 1 where that would need a device sync."""
    shares = [_share(group) for group in optimizer.param_groups]
    return max(shares, default=1.0)


def _share(group: dict[str, Any]) -> float:
    rate = _on_host(group["lr"])
    base = _base_rate(group)
    return 1.0 if rate is None or base <= 0 else rate / base


def _base_rate(group: dict[str, Any]) -> float:
    return _on_host(group.get("initial_lr", group["lr"])) or 0.0


def _on_host(rate: Any) -> float | None:
    """A rate as a float, or None where reading it would wait for the device."""
    if isinstance(rate, torch.Tensor) and rate.device.type != "cpu":
        return None
    return float(rate)


def _plan_of(scheduler: Any) -> _Plan | None:
    positions = 1
    if isinstance(scheduler, AcceleratedScheduler):
        # It steps once for each process, unless batches are split; DeepSpeed's engine steps its own once.
        alone = scheduler.split_batches or not scheduler.step_with_optimizer
        if not alone and not isinstance(scheduler, DeepSpeedSchedulerWrapper):
            positions = AcceleratorState().num_processes
        scheduler = scheduler.scheduler
    if not isinstance(scheduler, LambdaLR):
        return None
    bases = [_on_host(rate) for rate in scheduler.base_lrs]
    if not bases or None in bases:
        return None
    group = main_group([rate or 0.0 for rate in bases])
    function = scheduler.lr_lambdas[group]
    length = getattr(function, "keywords", {}).get("num_training_steps")
    return _Plan(
        base_rate=bases[group] or 0.0,
        multiple=lambda updates: float(function(updates * positions)),
        length=None if length is None else round(length / positions),
        scheduler=scheduler,
        positions_a_step=positions,
    )


def _restarts(scheduler: Any) -> bool:
    inner = getattr(scheduler, "scheduler", scheduler)
    return any(word in type(inner).__name__ for word in ("Restart", "Cyc"))


def _fault(fault: Fault, shape: ScheduleShape, plan: _Plan, args: Any) -> str:
    steps = shape.max_steps
    warm_up = args.get_warmup_steps(steps)
    if fault == "zero" and args.learning_rate == 0:
        return "the learning rate is 0 (learning_rate: 0), so nothing would be learned: set it above 0."
    if fault == "zero":
        return (
            f"the learning rate is 0 in all {steps} steps of this run, so nothing would be learned (learning_rate: "
            f"{args.learning_rate:g}, warm-up {warm_up} steps): train for more steps, or set warmup_steps: 0."
        )
    if fault == "peak_not_reached":
        return (
            f"the learning rate rises to the end of the run's {steps} steps and never reaches its peak: the warm-up is "
            f"longer than the run. Set warmup_steps below 1, as a share of the run: 0.03 (now {args.warmup_steps:g})."
        )
    if fault == "ends_early":
        end = min(each for each in (plan.length, shape.zero_from) if each is not None)
        return (
            f"the learning-rate schedule ends after {end} of the run's {steps} steps; what comes after is trained at "
            "a rate of 0, or one that nobody planned. Build the schedule with the run's own number of steps (leave it "
            f"to the Trainer: {_USUAL})."
        )
    return (
        f"the learning-rate schedule is laid out for {plan.length} steps, but the run has {steps}: it is cut off at "
        f"{shape.end:.2g} of its peak. Build it with the run's own number of steps (leave it to the Trainer: {_USUAL})."
    )


def _unusual(shape: ScheduleShape) -> str:
    """What is not as the guides have it; empty when all is."""
    low, high = GUIDE_WARM_UP
    parts = []
    if not warm_up_is_usual(shape):
        own = f"{shape.warm_up_steps} of {shape.max_steps} steps" if shape.warm_up_steps else "none"
        parts.append(f"warm-up {own}, {shape.warm_up_share:.1%} (guides: {low:.0%} to {high:.0%})")
    if not end_is_usual(shape):
        own = "constant" if shape.constant else f"ends at {shape.end:.2g} of its peak"
        parts.append(f"{own} (guides: about {GUIDE_END:g})")
    return f"{'; '.join(parts)}. The usual one: {_USUAL}." if parts else ""


def _departure(verdict: RateVerdict) -> str:
    if verdict.kind == "jump":
        return (
            f"the learning rate jumped from {verdict.before:.3g} to {verdict.rate:.3g}, as after a resume that lost "
            "the scheduler's state: check that the checkpoint holds scheduler.pt, and lower learning_rate if not."
        )
    return (
        f"the learning rate is {verdict.rate:.3g} where the schedule plans {verdict.planned:.3g}: something else sets "
        "it, or the scheduler's state was lost at a resume (the checkpoint must hold scheduler.pt)."
    )
