"""The one place where gradients are measured and clipped, shared by all watchers of a training run.

The Trainer clips before `on_pre_optimizer_step` and hands its norm to no hook. So the first watcher opens a gate that
sets `args.max_grad_norm` to 0 for the time of the run; the Trainer then only measures (its logged `grad_norm` is still
the norm before clipping, and fp16 gradients are still unscaled), and the gate clips to the user's value, by the same
two torch functions. Losses are the same to the last bit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hf_recipes.core import ranks

# Where the user's `max_grad_norm` is kept: a plain float, so that pickled arguments tell it, and so that a run broken
# off by an exception does not leave the next one without clipping.
_KEPT = "max_grad_norm_before_gate"
_NONE_BAD = float(2**24)  # above every code; codes below it are exact in float32
_LOSS, _GRADIENT = 0, 1
_NO_NORM = -1.0


@dataclass(frozen=True)
class BadMicroBatch:
    """The first micro-batch of a step, on the lowest rank, whose `what` ("loss" or "gradient") was not finite.

    `micro_batch` counts from 1. `rank` and `micro_batch` are None where gradients were averaged before anybody could
    see them: then only the step is known.
    """

    what: str
    micro_batch: int | None
    rank: int | None


@dataclass(frozen=True)
class Reading:
    """One step's measurement, the same on all ranks.

    `step` is the number the step will have in the logs. `norm` is the total norm before clipping: NaN when any
    gradient is not finite, None when there is none to be had (DeepSpeed without a norm).
    """

    step: int
    norm: float | None
    bad: BadMicroBatch | None


class GradientGate:
    """Takes over clipping for one run; measures once a step, with one small all-reduce and one host sync.

    Works on plain gradients (one process, DDP) and DTensors (FSDP2, on one mesh or several). Under DeepSpeed the update
    is done before any hook runs: the gate then reads the engine's norm and leaves clipping to it.
    """

    def __init__(self, args: Any, model: torch.nn.Module, optimizer: Any) -> None:
        self.updates_in_backward = isinstance(optimizer, DeepSpeedOptimizerWrapper)
        self.loss_scaled = getattr(optimizer, "scaler", None) is not None or (self.updates_in_backward and args.fp16)
        self.max_grad_norm = args.max_grad_norm or getattr(args, _KEPT, 0.0)
        self.guarded = False
        self._args = args
        self._optimizer = optimizer
        if not self.updates_in_backward:
            setattr(args, _KEPT, self.max_grad_norm)
            args.max_grad_norm = 0.0
        self._hook = model.register_forward_hook(self._see_loss)
        self.reset()

    @classmethod
    def open(cls, args: Any, model: torch.nn.Module, optimizer: Any) -> GradientGate:
        """The run's gate: the one another watcher opened, or a new one. Call it in `on_train_begin`."""
        gate = _GATES.get(model)
        if gate is None or gate._optimizer is not optimizer or gate._args is not args:
            if gate is not None:  # left over from a run that an exception ended
                gate.close(model)
            gate = _GATES[model] = cls(args, model, optimizer)
        gate.reset()
        return gate

    def reset(self) -> None:
        """Forget what an earlier attempt at this run measured."""
        self._reading: Reading | None = None
        self._start_step()

    def close(self, model: torch.nn.Module) -> None:
        """Give clipping back to the Trainer. The first watcher to leave does it; for the others it does nothing."""
        if _GATES.get(model) is self:
            del _GATES[model]
        self._hook.remove()
        if hasattr(self._args, _KEPT):
            self._args.max_grad_norm = self.max_grad_norm
            delattr(self._args, _KEPT)

    def end_micro_batch(self, model: torch.nn.Module) -> None:
        """Flag this rank's gradients after a micro-batch that does not end a step. Stays on the device: no sync."""
        local = [_local(parameter.grad) for parameter in _with_gradient(model)]
        if local:
            self._flag(get_total_norm(local), _GRADIENT)
        else:
            self._unseen_micro_batches = True  # FSDP2 keeps them to itself until they are reduced
        self._micro_batch += 1

    def measure(self, step: int, model: torch.nn.Module) -> Reading:
        """Measure, clip, and agree with the other ranks; once a step, however many watchers ask.

        Call it in `on_pre_optimizer_step` on every rank, with `state.global_step` as `step`.
        """
        if self._reading is None or self._reading.step != step + 1:
            norm = self._engine_norm() if self.updates_in_backward else self._clip(model)
            self._reading = self._agree(step + 1, norm)
            self._start_step()
        return self._reading

    def skip_update(self) -> bool:
        """Drop the gradients, so that the optimizer leaves weights and its own state alone. False where too late."""
        if self.updates_in_backward:
            return False
        self._optimizer.zero_grad(set_to_none=True)
        return True

    def _start_step(self) -> None:
        self._micro_batch = 0
        self._unseen_micro_batches = False
        self._first_bad = torch.full((), _NONE_BAD, device=self._args.device)

    # A side effect on purpose: kept out of a compiled model's graph.
    @torch.compiler.disable
    def _see_loss(self, module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if module.training and isinstance(loss, torch.Tensor):
            self._flag(loss.detach(), _LOSS)

    def _flag(self, value: torch.Tensor, what: int) -> None:
        code = (self._micro_batch * ranks.world_size() + ranks.rank()) * 2 + what
        bad = torch.where(value.isfinite().all(), _NONE_BAD, float(code)).to(self._first_bad)
        self._first_bad = torch.minimum(self._first_bad, bad)

    def _clip(self, model: torch.nn.Module) -> torch.Tensor:
        groups = _by_mesh(_with_gradient(model))
        norm = _total_norm(groups)
        if self.max_grad_norm > 0:
            for group in groups:
                clip_grads_with_norm_(group, self.max_grad_norm, norm)
        return norm

    def _engine_norm(self) -> torch.Tensor | None:
        engine_optimizer = self._optimizer.optimizer
        norm = getattr(engine_optimizer, "_global_grad_norm", None)
        if norm is None and getattr(engine_optimizer, "overflow", False):
            norm = math.inf
        return None if norm is None else torch.as_tensor(norm)

    def _agree(self, step: int, norm: torch.Tensor | None) -> Reading:
        device = self._first_bad.device
        known = torch.tensor(_NO_NORM, device=device) if norm is None else norm.detach().to(device, torch.float32)
        # MAX over ranks of (−first bad code, norm); NaN has no order there, so it travels as infinity.
        shared = torch.stack([-self._first_bad, torch.where(known.isfinite(), known, math.inf)])
        if ranks.world_size() > 1:
            torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        code, value = shared.tolist()
        finite_norm = None if value == _NO_NORM else (value if math.isfinite(value) else math.nan)
        return Reading(step, finite_norm, self._first_bad_of(-code, finite_norm))

    def _first_bad_of(self, code: float, norm: float | None) -> BadMicroBatch | None:
        if code < _NONE_BAD:
            place, what = divmod(int(code), 2)
            micro_batch, rank = divmod(place, ranks.world_size())
            return BadMicroBatch("gradient" if what == _GRADIENT else "loss", micro_batch + 1, rank)
        if norm is None or math.isfinite(norm):
            return None
        last = None if self._unseen_micro_batches or self.updates_in_backward else self._micro_batch + 1
        return BadMicroBatch("gradient", last, 0 if ranks.world_size() == 1 else None)


_GATES: WeakKeyDictionary[torch.nn.Module, GradientGate] = WeakKeyDictionary()


def see_loss(model: torch.nn.Module, loss: torch.Tensor) -> None:
    """Show a loss that was computed outside `model` to its gate, so that a NaN is named by rank and micro-batch.

    Does nothing without a gate, or outside training. The value stays on its device: no sync.
    """
    gate = _GATES.get(model)
    if gate is not None and model.training:
        gate._flag(loss.detach(), _LOSS)


def _with_gradient(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.grad is not None]


def _local(gradient: torch.Tensor | None) -> torch.Tensor:
    assert gradient is not None
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _by_mesh(parameters: Sequence[torch.nn.Parameter]) -> list[list[torch.nn.Parameter]]:
    groups: dict[Any, list[torch.nn.Parameter]] = defaultdict(list)
    for parameter in parameters:
        groups[parameter.grad.device_mesh if isinstance(parameter.grad, DTensor) else None].append(parameter)
    return list(groups.values())


def _total_norm(groups: Sequence[Sequence[torch.nn.Parameter]]) -> torch.Tensor:
    norms = [get_total_norm([parameter.grad for parameter in group if parameter.grad is not None]) for group in groups]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    if len(whole) == 1:
        return whole[0]
    return torch.linalg.vector_norm(torch.stack(whole)) if whole else torch.zeros(())
