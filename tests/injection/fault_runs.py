"""Faults put into a real run at a given step, and which watcher must say what, how soon."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainerCallback
from trial_runs import Run, pretrained, sequences

from hf_recipes.core import ranks

AT = 60
"""The step, as logged, in which a fault begins."""

Work = Callable[["Injector", Any, int], None]


@dataclass(frozen=True)
class Fault:
    """A fault: the run it is put into, the alarms that count as finding it, and in how many steps it must be found.

    `within` counts from the step in which the fault begins: 0 is the step itself.
    """

    name: str
    run: Run
    found_by: tuple[tuple[str, str], ...]
    within: int
    starts: int = AT


class Injector(TrainerCallback):
    """Does a fault's work. It stands before the watchers, so its hooks come before theirs.

    Args:
        forward: gets the output of each training forward pass from step `AT` on, and returns what stands in its place.
        before_step: is called at the begin of each step from `AT` on, with model and step.
        after_step: likewise at the end of each step.
        gradient_factor: what every gradient is multiplied by.
        rank: the only rank on which anything is done; None: on all.
    """

    def __init__(
        self,
        forward: Callable[[torch.Tensor, int], torch.Tensor] | None = None,
        before_step: Work | None = None,
        after_step: Work | None = None,
        gradient_factor: float = 1.0,
        rank: int | None = None,
    ) -> None:
        self.rank = rank
        self.gradient_factor = gradient_factor
        self.forward, self.before_step, self.after_step = forward, before_step, after_step
        self.kept: list[Any] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step, self.optimizer, self.scheduler = 0, kwargs["optimizer"], kwargs["lr_scheduler"]
        self._hook = kwargs["model"].register_forward_hook(self._change)
        if self.gradient_factor != 1.0:
            for parameter in kwargs["model"].parameters():
                parameter.register_hook(lambda gradient: gradient * (self.gradient_factor if self.step >= AT else 1.0))

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.step = state.global_step + 1
        if self.before_step and self._acts():
            self.before_step(self, kwargs["model"], self.step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.after_step and self._acts():
            self.after_step(self, kwargs["model"], self.step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._hook.remove()

    def _acts(self) -> bool:
        return self.step >= AT and self.rank in (None, ranks.rank())

    def _change(self, model: Any, inputs: Any, output: Any) -> Any:
        if self.forward and model.training and self._acts():
            # Our trainer's head hands on hidden states in the place of logits; the loss is computed from them.
            output.logits = self.forward(output.logits, self.step)
        return output


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient * ctx.factor, None


def once(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor, int], torch.Tensor]:
    return lambda value, step: change(value) if step == AT else value


def _poison_weight(injector: Injector, model: Any, step: int) -> None:
    if step == AT:
        with torch.no_grad():
            model.model.layers[0].mlp.up_proj.weight[0, 0] = float("nan")


def _drift(injector: Injector, model: Any, step: int) -> None:
    """Somebody else writes into the weights: a random walk of 30 % of their size a step."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * parameter.std() * torch.randn_like(parameter) if parameter.ndim > 1 else 0.0


def _raise_rate(injector: Injector, model: Any, step: int) -> None:
    """The rate itself, as a bug in a scheduler would: 15 % more each step."""
    for group in injector.optimizer.param_groups:
        group["lr"] = 5e-3 * 1.15 ** (step - AT)


def _leak(injector: Injector, model: Any, step: int) -> None:
    injector.kept.append(torch.ones(1_000_000))  # 4 MB, touched


def _slow(value: torch.Tensor, step: int) -> torch.Tensor:
    time.sleep(0.5)
    return value


def _freeze(injector: Injector, model: Any, step: int) -> None:
    """Requires-grad lost, as by a wrapper that freezes what it should not."""
    for parameter in model.parameters():
        parameter.grad = None
        parameter.requires_grad_(parameter.ndim == 1)


def _slow_rows(seed: int) -> Any:
    """Rows in order that take 50 ms each from the ones of step `AT` on."""
    served = 0

    def serve(batch: dict[str, Any]) -> dict[str, Any]:
        nonlocal served
        if served >= 8 * (AT - 1):
            time.sleep(0.05 * len(batch["input_ids"]))
        served += len(batch["input_ids"])
        return batch

    return sequences(1200)(seed).with_transform(serve)


def _garbage(seed: int) -> Any:
    """One batch of rows of another kind in a stream of good ones: answers counting backwards from nowhere."""
    from datasets import concatenate_datasets

    good = sequences(1200, noise=0.0)(seed)
    bad = sequences(8, noise=1.0)(seed + 1)
    return concatenate_datasets([good.select(range(8 * (AT - 1))), bad, good.select(range(8 * AT, 1200))])


def _run(name: str, injector: Callable[[], Injector], **more: Any) -> Run:
    return Run(name, **{"rows": sequences(), **more}, callbacks=lambda: [injector()])


def _fault(name: str, found_by: tuple[tuple[str, str], ...], within: int, **parts: Any) -> Fault:
    work = {
        key: parts.pop(key)
        for key in ("forward", "before_step", "after_step", "gradient_factor", "rank")
        if key in parts
    }
    starts = parts.pop("starts", AT)
    return Fault(name, _run(name, lambda: Injector(**work), **parts), found_by, within, starts)


NAN = float("nan")
SHORT = {"max_steps": AT + 10}
ACCUMULATED = {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2}

FAULTS = [
    _fault("a NaN loss", (("non_finite", "loss"),), 0, forward=once(lambda value: value * NAN)),
    _fault(
        "a NaN in one of four micro-batches",
        (("non_finite", "loss"),),
        0,
        forward=once(lambda value: value * NAN),
        arguments=ACCUMULATED,
    ),
    _fault(
        "a NaN gradient, the loss healthy",
        (("non_finite", "gradient"),),
        0,
        forward=once(lambda value: _ScaledGradient.apply(value, NAN)),
    ),
    _fault("a weight that is NaN", (("non_finite", "loss"),), 1, before_step=_poison_weight),
    _fault(
        "one exploding micro-batch",
        (("grad_norm", "exploding"),),
        0,
        forward=once(lambda value: _ScaledGradient.apply(value, 1e3)),
    ),
    _fault(
        "one exploding micro-batch of four",
        (("grad_norm", "exploding"),),
        0,
        forward=once(lambda value: _ScaledGradient.apply(value, 1e3)),
        arguments=ACCUMULATED,
    ),
    _fault(
        "vanishing gradients",
        (("grad_norm", "vanishing"),),
        0,
        gradient_factor=1e-6,
    ),
    _fault(
        "a frozen loss",
        (("loss", "stuck"), ("grad_norm", "vanishing")),
        2,
        forward=lambda value, step: value * 0.0,
    ),
    _fault("weights frozen on the way", (("grad_norm", "vanishing"),), 2, before_step=_freeze),
    _fault(
        "one batch of rows of another kind",
        (("loss", "spike"), ("grad_norm", "exploding")),
        2,
        rows=_garbage,
        arguments={"train_sampling_strategy": "sequential", "learning_rate": 1e-2},
        starts=AT,
    ),
    _fault("a slow drift of the weights", (("loss", "rising"), ("loss", "spike")), 50, after_step=_drift),
    _fault(
        "a learning rate that grows on and on",
        (("schedule", "jump"), ("schedule", "off_plan"), ("loss", "rising"), ("loss", "spike")),
        50,
        before_step=_raise_rate,
    ),
    Fault(
        "a learning rate far too high from the start",
        Run(
            "far too high a rate",
            sequences(),
            pretrained,
            {"learning_rate": 0.3, "warmup_steps": 20, "max_steps": 120},
        ),
        (("loss", "rising"), ("loss", "spike"), ("grad_norm", "exploding")),
        50,
        starts=1,
    ),
    _fault("a memory leak of 4 MB a step", (("memory", "leak"),), 50, after_step=_leak),
    _fault("steps that become slower", (("throughput", "slower"),), 50, forward=_slow, arguments={"max_steps": 115}),
    Fault(
        "data that come too slowly",
        Run(
            "slow data",
            _slow_rows,
            arguments={"train_sampling_strategy": "sequential", "max_steps": 112},
        ),
        (("throughput", "data_wait"),),
        50,
    ),
    Fault(
        "overfitting on 20 rows",
        Run(
            "twenty rows",
            sequences(20, noise=0.4),
            arguments={"max_steps": 200, "eval_steps": 10, "learning_rate": 1e-2},
            eval_rows=lambda seed: sequences(64, noise=0.4)(seed + 1),
        ),
        (("overfit", "overfit"),),
        50,
        starts=0,  # the best evaluation's step, known only afterwards
    ),
]


def _die(injector: Injector, model: Any, step: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _dawdle(injector: Injector, model: Any, step: int) -> None:
    if step == AT:
        time.sleep(10)


def _nudge(injector: Injector, model: Any, step: int) -> None:
    if step == AT:
        with torch.no_grad():
            model.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-6


FAULTS_OF_TWO_RANKS = [
    _fault("a NaN in one rank's batch", (("non_finite", "loss"),), 0, forward=once(lambda value: value * NAN), rank=1),
    _fault(
        "a straggler", (("ranks", "late"),), 1, before_step=_dawdle, rank=1, watch={"late_seconds": 3}, arguments=SHORT
    ),
    _fault("a killed rank", (("ranks", "gone"),), 1, before_step=_die, rank=1, arguments=SHORT),
    _fault(
        "weights that came apart",
        (("ranks", "parameters"), ("ranks", "gradient")),
        50,
        after_step=_nudge,
        rank=1,
        watch={"checksum_steps": 25},
    ),
]
"""For two processes; `within` is 1 where the other rank has gone on to the next step."""

FAULTS += [
    Fault(
        "answers that have nothing to do with the prompts",
        Run("noise", sequences(noise=1.0)),
        (("loss", "stuck"),),
        100,  # a slow begin looks the same at first; a note comes after 50
        starts=1,
    ),
    Fault(
        "a learning rate a hundred times too low",
        Run("too low a rate", sequences(), arguments={"learning_rate": 5e-5}),
        (("loss", "stuck"),),
        100,
        starts=1,
    ),
]


@dataclass
class Outcome:
    """What a trial gave: the alarms, and the delay of the first that found the fault (None: it was not found)."""

    name: str
    alarms: list[tuple[int, str, str]] = field(default_factory=list)
    delay: int | None = None
    found: list[tuple[int, str, str]] = field(default_factory=list)


def judge(fault: Fault, alarms: list[tuple[int, str, str]], starts: int) -> Outcome:
    """The delay from `starts` to the first alarm that counts."""
    found = [alarm for alarm in alarms if alarm[1:] in fault.found_by and alarm[0] >= starts]
    return Outcome(fault.name, alarms, min((step - starts for step, *_ in found), default=None), found)
