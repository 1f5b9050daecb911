"""`NonFiniteGuard`: no NaN and no infinity reaches the weights."""

from __future__ import annotations

import math
from typing import Any

from transformers import TrainerCallback

from hf_recipes.callbacks.advice import for_non_finite
from hf_recipes.callbacks.bad_steps import BadSteps, Decision
from hf_recipes.callbacks.gradients import GradientGate
from hf_recipes.callbacks.reading import BadMicroBatch, Reading
from hf_recipes.callbacks.watching import Resumable, alarm, note, run_facts
from hf_recipes.core.errors import UserError


class NonFiniteGuard(Resumable, TrainerCallback):
    """Catches a non-finite loss or gradient before the optimizer step, on all ranks alike, at every step.

    The Trainer by itself logs such a loss as the running mean and takes the step. Here the update is dropped (weights
    and optimizer state stay as they were; the learning-rate schedule still moves on by one step) and the alarm names
    step, micro-batch and rank. Under DeepSpeed the update is already made: the guard can only stop.

    Overflowing fp16 gradients under a loss scaler with a finite loss are the scaler's business: it skips the update and
    lowers its scale. They are counted, and stop the run only after `max_consecutive_skips` in a row.

    Args:
        policy: "stop" ends the run at the first bad step, "skip" goes on.
        max_consecutive_skips: bad steps in a row after which "skip" stops too.

    Attributes:
        tripped: the sentence that says why this guard stopped the run, or None.

    Events: "alarm" with `detector` "non_finite", `what` (loss or gradient), `micro_batch` (from 1), `micro_batches`,
    `bad_rank`, `grad_norm`, `decision`; "note" with `skipped` at the end.
    """

    detector: BadSteps

    def __init__(self, policy: str = "stop", max_consecutive_skips: int = 10) -> None:
        if policy not in ("stop", "skip"):
            raise UserError(f"NonFiniteGuard(policy={policy!r}): policy must be 'stop' or 'skip'.")
        self.policy = policy
        self.max_consecutive_skips = max_consecutive_skips
        self.tripped: str | None = None
        self.detector = self.new_detector()

    def settings(self) -> dict[str, Any]:
        return {"policy": self.policy, "max_consecutive_skips": self.max_consecutive_skips}

    def new_detector(self) -> BadSteps:
        return BadSteps(1 if self.policy == "stop" else self.max_consecutive_skips)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin(state)
        self.tripped = None
        self._gate = GradientGate.open(args, kwargs["model"], kwargs["optimizer"])
        self._gate.guarded = True

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate.end_micro_batch(kwargs["model"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        reading = self._gate.measure(state.global_step, kwargs["model"])
        bad = reading.bad
        overflow = bad is not None and bad.what == "gradient" and self._gate.loss_scaled
        limit = self.max_consecutive_skips if overflow else 1 if self._gate.updates_in_backward else None
        decision = self.detector.judge(bad is not None, limit)
        if bad is None or (overflow and decision == "skip"):
            return
        update_dropped = self._gate.skip_update()
        facts = run_facts(args, kwargs["model"], self._gate.max_grad_norm)
        sentence = f"{_what_happened(reading, bad, args)} {self._what_is_done(decision, reading, update_dropped)}"
        sentence = f"{sentence} {for_non_finite(facts)}"
        if decision == "stop":
            self.tripped = sentence
            control.should_training_stop = True
        alarm(
            args,
            state,
            reading.step,
            "non_finite",
            sentence,
            what=bad.what,
            micro_batch=bad.micro_batch,
            micro_batches=args.gradient_accumulation_steps,
            bad_rank=bad.rank,
            grad_norm=reading.norm,
            learning_rate=args.learning_rate,
            decision=decision,
            update_dropped=update_dropped,
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate.close(kwargs["model"])
        if total := self.detector.total:
            sentence = f"{total} of {state.global_step} updates were skipped because a loss or gradient was not finite."
            note(args, state, "non_finite", sentence, skipped=total)

    def _what_is_done(self, decision: Decision, reading: Reading, update_dropped: bool) -> str:
        if not update_dropped:
            return "Training stops; DeepSpeed has already made or skipped this update itself, so verify the weights."
        kept = f"the weights are those of step {reading.step - 1}"
        if decision == "skip":
            row = f"{self.detector.in_a_row} in a row, {self.max_consecutive_skips} stop the run"
            return f"The update is skipped ({row}): {kept}, and the learning-rate schedule moves on."
        after = f" after {self.detector.in_a_row} such steps in a row" if self.detector.in_a_row > 1 else ""
        return f"Training stops{after} before the update: {kept}."


def _what_happened(reading: Reading, bad: BadMicroBatch, args: Any) -> str:
    place = ""
    if bad.micro_batch is not None:
        place += f" of micro-batch {bad.micro_batch} of {args.gradient_accumulation_steps}"
    place += f" on rank {bad.rank}" if bad.rank is not None else " (on a rank unknown: it was averaged before)"
    gradient = ", and so is the gradient" if bad.what == "loss" and _not_finite(reading.norm) else ""
    return f"Step {reading.step}: the {bad.what}{place} is not finite{gradient}; the logged loss may hide it."


def _not_finite(norm: float | None) -> bool:
    return norm is not None and not math.isfinite(norm)
