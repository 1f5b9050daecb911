"""`TrainableGuard`: a run that cannot learn stops at its first step."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from hf_recipes.callbacks.advice import for_nothing_trainable, for_zero_gradient
from hf_recipes.callbacks.gradients import GradientGate
from hf_recipes.callbacks.watching import alarm
from hf_recipes.core.errors import UserError

_NAMES_TOLD = 3


class TrainableGuard(TrainerCallback):
    """Refuses to train when no parameter is trainable, and stops before the first update when its gradient is zero.

    Attributes:
        tripped: the sentence that says why this guard stopped the run, or None.

    Events: "alarm" with `detector` "trainable", `trainable` (tensors) and `without_gradient`.

    Raises:
        UserError: at the start, on all ranks alike, when no parameter takes a gradient.
    """

    def __init__(self) -> None:
        self.tripped: str | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.tripped = None
        self._judged = False
        # Tensors, not elements: ZeRO-3 shows empty ones.
        if not any(parameter.requires_grad for parameter in kwargs["model"].parameters()):
            total = sum(1 for _ in kwargs["model"].parameters())
            raise UserError(f"None of the {total} parameter tensors is trainable. {for_nothing_trainable()}")
        self._gate = GradientGate.open(args, kwargs["model"], kwargs["optimizer"])

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._judged:
            return
        self._judged = True
        reading = self._gate.measure(state.global_step, kwargs["model"])
        if reading.norm != 0:
            return
        trainable = {name: each for name, each in kwargs["model"].named_parameters() if each.requires_grad}
        # DeepSpeed takes all gradients away before any hook runs, so there none can be called idle.
        hidden = self._gate.updates_in_backward
        idle = [] if hidden else [name for name, parameter in trainable.items() if parameter.grad is None]
        self._gate.skip_update()
        self.tripped = _sentence(reading.step, len(trainable), idle)
        control.should_training_stop = True
        alarm(
            args,
            state,
            reading.step,
            "trainable",
            self.tripped,
            trainable=len(trainable),
            without_gradient=len(idle),
        )

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._gate.close(kwargs["model"])


def _sentence(step: int, trainable: int, idle: list[str]) -> str:
    told = f", {len(idle)} of them without any gradient (the first: {', '.join(idle[:_NAMES_TOLD])})" if idle else ""
    return (
        f"Step {step}: the gradient of all {trainable} trainable tensors is zero{told}, so nothing would be learned. "
        f"Training stops. {for_zero_gradient()}"
    )
