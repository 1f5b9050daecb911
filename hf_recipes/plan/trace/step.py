"""One real training step of the real model class on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.read_geometry import quantisable_linears
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.trace.fakes import put_on_fake
from hf_recipes.plan.trace.hidden import INSTEAD, hidden_on
from hf_recipes.plan.trace.losses import Batch, StepLoss, full_logits
from hf_recipes.plan.trace.optimizers import build_optimizer, make_states, state_tensors
from hf_recipes.plan.trace.quantized import pack_linears, quantization_tensors
from hf_recipes.plan.trace.storages import StorageTracker

WEIGHTS = "weights"
_STATES = "states"  # the making of optimizer states, which no real step has beside activations
_ENGINE_HOLDS, _STORAGE_HELD = 4, 2
_CUDA_GRANULARITY = 512  # bytes; c10's CUDA caching allocator rounds every block up to it


@dataclass(frozen=True)
class Trace:
    """What a traced step took, and what must be known to read it.

    Attributes:
        memory: by phase and part; ``activations`` were made in the forward pass outside the head, ``logits`` by head
            and loss, ``temporaries`` in backward and optimizer step, ``autocast`` are 16-bit copies of weights.
        notes: in what the trace differs from the real run, one sentence each.
    """

    memory: MemoryEstimate
    notes: tuple[str, ...]


def trace_step(
    build: Callable[[], Any],
    settings: TrainingSettings,
    *,
    attach: Callable[[Any], Any] | None = None,
    loss: StepLoss = full_logits,
    device: str = "cuda",
) -> Trace:
    """Run one step (forward, loss, backward, clip, optimizer) without memory or arithmetic, and follow every storage.

    Args:
        build: makes the base model in its dtype (``from_config``); called with the meta device set.
        settings: the job.
        attach: puts the method on the base and returns the model to train; likewise on the meta device.
        loss: of `losses`.
        device: that is planned for, ``cpu`` or ``cuda``. The operations are those of the CPU either way, since PyTorch
            runs fake ones of a GPU only where there is one; sizes are rounded as the GPU's allocator does.

    Raises:
        UserError: the optimizer cannot be had.
    """
    granularity = 1 if device == "cpu" else _CUDA_GRANULARITY
    tracker = StorageTracker(hidden_on(device), granularity, _part_of_result, INSTEAD)
    tracker.instead["aten.add.Tensor"] = partial(_add, tracker)
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # code tables of 8-bit optimizers are real
    model = _prepare(build, attach, settings, mode)
    optimizer = build_optimizer(settings.optimizer, model, _trained(model), device)
    with mode, _rows_of_one_sample(not settings.packed), _autocast_as_on_a_gpu(device == "cuda"):
        batch = _batch(settings, model.config.get_text_config().vocab_size)
        tracker.assign([*model.parameters(), *model.buffers(), *quantization_tensors(model)], WEIGHTS)
        tracker.assign([batch.labels, *batch.inputs.values()], "buffers")
        tracker.begin("load")
        with tracker:
            tracker.begin(_STATES)
            make_states(optimizer)
            tracker.assign(state_tensors(optimizer), "optimizer")
            with _gradients_followed(_trained(model), tracker), _head_followed(model, tracker):
                _one_step(model, optimizer, batch, settings, loss, tracker)
    phases = {phase: peak for phase, peak in tracker.peaks.items() if phase != _STATES}
    return Trace(MemoryEstimate(phases), tuple(_notes(settings, device)))


def _prepare(
    build: Callable[[], Any],
    attach: Callable[[Any], Any] | None,
    settings: TrainingSettings,
    mode: FakeTensorMode,
) -> Any:
    """The model as it trains: quantised, with its method, checkpointed, on fake tensors."""
    with torch.device("meta"):
        base = build()
        if settings.quantization == "nf4":
            dtype = getattr(torch, settings.weights_dtype)
            pack_linears(base, quantisable_linears(base), dtype, double=settings.double_quantization)
        model = base if attach is None else attach(base)
    with mode:
        put_on_fake(model)
    _checkpoint(model, settings.checkpointing)
    model.train()
    return model


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [each for each in model.parameters() if each.requires_grad]


def _checkpoint(model: Any, name: str) -> None:
    """Switch activation checkpointing on as the Trainer does."""
    if name == "off":
        return
    if name == "selective":
        from trl.models import enable_selective_activation_checkpointing

        enable_selective_activation_checkpointing(model.get_base_model() if hasattr(model, "peft_config") else model)
    every = int(name.removeprefix("every_")) if name.startswith("every_") else 1
    model.activation_checkpointing_enable(activation_checkpointing_kwargs=None, every_n_layers=every)


def _batch(settings: TrainingSettings, vocabulary: int) -> Batch:
    shape = (settings.micro_batch, settings.tokens)
    ids, labels = torch.ones(shape, dtype=torch.long), torch.ones(shape, dtype=torch.long)
    chosen = settings.micro_batch * min(round(settings.supervised_share * settings.tokens), settings.tokens - 1)
    rows, columns, targets = (torch.ones(chosen, dtype=torch.long) for _ in range(3))
    inputs = {"input_ids": ids}
    if settings.padding_mask:
        inputs["attention_mask"] = torch.ones(shape, dtype=torch.long)
    if settings.packed:
        inputs["position_ids"] = torch.ones(shape, dtype=torch.long)
    return Batch(inputs, labels, rows, columns, targets)


def _one_step(
    model: Any, optimizer: Any, batch: Batch, settings: TrainingSettings, loss: StepLoss, tracker: StorageTracker
) -> None:
    autocast = _autocast(settings.autocast_dtype)
    _wrap_forward(model, autocast, settings.autocast_dtype is not None)
    for _ in range(min(2, settings.accumulation)):  # from the second micro-batch on, gradients stay
        tracker.begin("forward")
        tracker.part = "activations"
        value = loss(model, model, batch, autocast)
        tracker.begin("backward")
        tracker.part = "temporaries"
        value.backward()
        del value
    tracker.begin("optimizer_step")
    torch.nn.utils.clip_grad_norm_(_trained(model), 1.0)
    optimizer.step()


def _autocast(dtype: str | None) -> Callable[[], AbstractContextManager[Any]]:
    if dtype is None:
        return nullcontext
    return lambda: torch.autocast("cpu", dtype=getattr(torch, dtype))


def _wrap_forward(model: Any, autocast: Callable[[], AbstractContextManager[Any]], on: bool) -> None:
    """As `accelerate.Accelerator.prepare_model` does: the forward pass under autocast, its results in fp32."""
    if not on:
        return
    from accelerate.utils import convert_outputs_to_fp32

    plain = model.forward.__func__

    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        with autocast():
            return plain(*args, **kwargs)

    model.forward = MethodType(convert_outputs_to_fp32(under_autocast), model)


@contextmanager
def _gradients_followed(parameters: list[nn.Parameter], tracker: StorageTracker) -> Iterator[None]:
    def follow(parameter: Tensor) -> None:
        if parameter.grad is not None:
            tracker.assign([parameter.grad], "gradients")

    hooks = [parameter.register_post_accumulate_grad_hook(follow) for parameter in parameters]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _head_followed(model: Any, tracker: StorageTracker) -> Iterator[None]:
    """From the head on, what the forward pass makes are logits and what is made of them."""

    def begin(*_: Any) -> None:
        tracker.part = "logits"

    hook = model.get_output_embeddings().register_forward_pre_hook(begin)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _autocast_as_on_a_gpu(is_so: bool) -> Iterator[None]:
    """PEFT's quantised layers ask whether autocast is on without saying of which device, which means a GPU's: traced on
    the CPU they would bring their input to fp32 first, as they do not on a GPU."""
    if not is_so:
        yield
        return
    asked = torch.is_autocast_enabled
    with patch.object(torch, "is_autocast_enabled", lambda *device: asked(*(device or ("cpu",)))):
        yield


@contextmanager
def _rows_of_one_sample(is_so: bool) -> Iterator[None]:
    """transformers looks into the positions for rows of several samples; where it cannot look, it takes them to be such
    and makes a dense mask."""
    if not is_so:
        yield
        return
    from transformers import masking_utils

    with patch.object(masking_utils, "find_packed_sequence_indices", lambda position_ids: None):
        yield


def _add(tracker: StorageTracker, first: Tensor, second: Any, **more: Any) -> Tensor:
    """Autograd's engine adds up gradients in place where nobody else holds the first, but never those of a subclass,
    which fake tensors are: so it is done here."""
    engine = not torch.is_grad_enabled() and tracker.part_of(first) in ("temporaries", "gradients")
    if engine and isinstance(second, Tensor) and first.dtype == second.dtype and _held_once(first):
        return first.add_(second, **more)
    return torch.ops.aten.add.Tensor(first, second, **more)


def _held_once(tensor: Tensor) -> bool:
    """Nobody but the engine has this tensor or a view of it: one count each, beside those of Python's wrapper, the
    dispatcher's arguments and the tracker's look at the storage."""
    storage = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return tensor._use_count() <= _ENGINE_HOLDS and storage <= _STORAGE_HELD  # type: ignore[attr-defined]


def _part_of_result(operation: Any, args: tuple[Any, ...], result: Any, tracker: StorageTracker) -> str | None:
    """16-bit copies of weights that autocast makes and keeps are a part of their own."""
    if str(operation) != "aten._to_copy.default" or tracker.part_of(args[0]) != WEIGHTS:
        return None
    return "autocast" if result.element_size() < args[0].element_size() else None


def _notes(settings: TrainingSettings, device: str) -> Iterator[str]:
    if device != "cpu":
        yield "Operations are those of the CPU: a GPU's kernels may take workspaces besides."
    if settings.checkpointing == "host":
        yield "Inputs of layers are counted on the device, though they are kept on the host."
    if settings.compiled:
        yield "Without torch.compile, which fuses operations and so keeps less."
