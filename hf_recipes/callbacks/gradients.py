"""The one place where gradients are measured and clipped, shared by all watchers of a training run.

The Trainer clips before `on_pre_optimizer_step` and hands its norm to no hook. So the first watcher opens a gate that
sets `args.max_grad_norm` to 0 for the time of the run; the Trainer then only measures (its logged `grad_norm` is still
the norm before clipping, and fp16 gradients are still unscaled), and the gate clips to the user's value, by the same
two torch functions. Losses are the same to the last bit.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from hf_recipes.callbacks.forward_probe import ForwardProbe
from hf_recipes.callbacks.reading import GRADIENT, NO_NORM, Reading, Told, from_told
from hf_recipes.core import ranks

# Where the user's `max_grad_norm` is kept: a plain float, so that pickled arguments tell it, and so that a run broken
# off by an exception does not leave the next one without clipping.
_KEPT = "max_grad_norm_before_gate"
_CLIP_EPSILON = 1e-6  # torch's clip_grads_with_norm_ adds it to the norm


class GradientGate:
    """Takes over clipping for one run; measures once a step, with one small all-gather and one host sync.

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
        self._probe = ForwardProbe(model, args.device)
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
        self._probe.remove()
        if hasattr(self._args, _KEPT):
            self._args.max_grad_norm = self.max_grad_norm
            delattr(self._args, _KEPT)

    def end_micro_batch(self, model: torch.nn.Module) -> None:
        """Flag this rank's gradients after a micro-batch that does not end a step. Stays on the device: no sync."""
        gradients = [parameter.grad for parameter in _with_gradient(model)]
        if gradients:
            # FSDP2 that reduces at each micro-batch: a bad value is then every rank's.
            self._averaged = any(isinstance(gradient, DTensor) for gradient in gradients)
            norm = get_total_norm([_local(gradient) for gradient in gradients])
            self._probe.flag(norm, GRADIENT, of_all_ranks=self._averaged)
        else:
            self._unseen_micro_batches = True  # FSDP2 keeps them to itself until they are reduced
        self._probe.micro_batch += 1

    @property
    def keep_micro_batches(self) -> bool:
        """Whether the inputs of each step's micro-batches are kept for `micro_batches`; a watcher may set it."""
        return self._probe.keep_micro_batches

    @keep_micro_batches.setter
    def keep_micro_batches(self, keep: bool) -> None:
        self._probe.keep_micro_batches = keep

    @property
    def micro_batches(self) -> list[dict[str, Any]]:
        """What this rank's training forward passes of the step were given, labels included, in order; from `measure`
        until the next step's first forward pass. References, not copies."""
        return self._probe.micro_batches

    def measure(self, step: int, model: torch.nn.Module) -> Reading:
        """Measure, clip, and agree with the other ranks; once a step, however many watchers ask.

        Call it in `on_pre_optimizer_step` on every rank, with `state.global_step` as `step`.
        """
        if self._reading is None or self._reading.step != step + 1:
            norm = self._engine_norm() if self.updates_in_backward else self._clip(model)
            self._reading = self._agree(step + 1, norm)
            self._start_step()
        return self._reading

    def clipped_by(self) -> float:
        """What this step's clip divided the gradients by (1: nothing), as `measure` left them."""
        norm = self._reading.norm if self._reading else None
        if norm is None or self.max_grad_norm <= 0 or self.updates_in_backward:
            return 1.0
        return max(1.0, (norm + _CLIP_EPSILON) / self.max_grad_norm)

    def skip_update(self) -> bool:
        """Drop the gradients, so that the optimizer leaves weights and its own state alone. False where too late."""
        if self.updates_in_backward:
            return False
        self._optimizer.zero_grad(set_to_none=True)
        return True

    def _start_step(self) -> None:
        self._unseen_micro_batches = self._averaged = False
        self._probe.start_step()

    def _clip(self, model: torch.nn.Module) -> torch.Tensor:
        groups = _by_mesh(_with_gradient(model))
        norm = _norm_of(groups)
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
        probe = self._probe
        values = {
            "first_bad": probe.first_bad,
            "norm": NO_NORM if norm is None else norm.detach(),
            "weighted_loss": probe.weighted_loss,
            "mean_loss": probe.mean_loss,
            "weighted_calls": probe.weighted_calls,
            "mean_calls": probe.mean_calls,
            "step": step,
            "rows": probe.rows,
            "positions": probe.positions,
            "supervised_tokens": probe.supervised_tokens,
            "micro_batches": probe.calls,
        }
        unseen = self._unseen_micro_batches or self.updates_in_backward
        return from_told(
            [Told(**dict(zip(values, told, strict=True))) for told in _gathered(values.values(), self._args.device)],
            step,
            items_of_all_ranks=getattr(self._args, "average_tokens_across_devices", True),
            last_bad=None if unseen else probe.micro_batch + 1,
            averaged=self._averaged,
        )


_GATES: WeakKeyDictionary[torch.nn.Module, GradientGate] = WeakKeyDictionary()


def see_loss(model: torch.nn.Module, loss: torch.Tensor, labels: torch.Tensor, *, weighted: bool) -> None:
    """Show a micro-batch's loss that was computed outside `model` to its gate, if there is one and the model trains.

    Args:
        loss: scalar; it stays on its device, no sync.
        labels: what the forward pass was not given.
        weighted: `loss` was divided by the number of items of the whole step, not by those of the micro-batch.
    """
    gate = _GATES.get(model)
    if gate is not None and model.training:
        gate._probe.see_loss(loss, weighted=weighted)
        gate._probe.see_labels(labels)


def _gathered(values: Iterable[torch.Tensor | float], device: torch.device) -> list[list[float]]:
    """Every rank's values, in rank order: one collective and one sync."""
    # Filled on the host and copied once; the values that lie on the device are put in their places there.
    listed = list(values)
    shared = torch.tensor([0.0 if isinstance(each, torch.Tensor) else each for each in listed]).to(device)
    for place, value in enumerate(listed):
        if isinstance(value, torch.Tensor):
            shared[place] = value
    if ranks.world_size() == 1:
        return [shared.tolist()]
    whole = shared.new_empty(ranks.world_size() * len(listed))
    torch.distributed.all_gather_into_tensor(whole, shared)
    return whole.view(-1, len(listed)).tolist()


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


def total_norm(parameters: Sequence[torch.nn.Parameter]) -> torch.Tensor:
    """Norm of the gradients of `parameters`, whole where they are sharded (then a collective); 0 without any."""
    return _norm_of(_by_mesh(parameters))


def _norm_of(groups: Sequence[Sequence[torch.nn.Parameter]]) -> torch.Tensor:
    norms = [get_total_norm([parameter.grad for parameter in group if parameter.grad is not None]) for group in groups]
    whole = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    if len(whole) == 1:
        return whole[0]
    return torch.linalg.vector_norm(torch.stack(whole)) if whole else torch.zeros(())
