"""A model put back bit for bit: what is trained is copied, and what a pass could leave behind is noted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_recipes.core.log import logger
from hf_recipes.core.random_state import random_state_kept
from hf_recipes.training.fit import readable
from hf_recipes.training.free_memory import free_bytes

# Copies in main memory must leave at least as much again.
_MEMORY_SHARE = 0.5
_TOLD_BYTES = 256 * 2**20


class Snapshot:
    """Copies of all trained parameters and all buffers, in main memory, or in a file where that is scarce.

    Args:
        model: Its parameters may then change in place, and only those that require a gradient.
        directory: Where the file would go; the system's directory for temporary files by default.

    Attributes:
        place: ``memory``, or the path of the file.
        size_bytes: of the copies.
    """

    def __init__(self, model: nn.Module, directory: Path | None = None) -> None:
        self._model = model
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        self.size_bytes = sum(value.numel() * value.element_size() for value in trained.values())
        self._buffers = {name: value.detach().clone() for name, value in model.named_buffers()}
        self._file: Path | None = None
        self._copies: dict[str, Tensor] = {}
        self.place = "memory"
        if self.size_bytes <= _MEMORY_SHARE * free_bytes(torch.device("cpu")):
            if self.size_bytes >= _TOLD_BYTES:
                logger.info(
                    "Overfit test: %s of weights are copied in main memory for its time.", readable(self.size_bytes)
                )
            self._copies = {name: value.detach().to("cpu", copy=True) for name, value in trained.items()}
            return
        handle = tempfile.NamedTemporaryFile(prefix="overfit-", suffix=".pt", dir=directory, delete=False)  # noqa: SIM115
        self._file = Path(handle.name)
        self.place = handle.name
        logger.info(
            "Overfit test: %s of weights are copied to '%s' for its time.", readable(self.size_bytes), self.place
        )
        with handle:
            torch.save({name: value.detach() for name, value in trained.items()}, handle)

    @torch.no_grad()
    def put_back(self) -> None:
        """Write the copies over the parameters and buffers. May be called again."""
        copies = self._copies or self._read()
        for name, parameter in self._model.named_parameters():
            if name in copies:
                parameter.copy_(copies[name])
        for name, buffer in self._model.named_buffers():
            kept = self._buffers.get(name)
            if kept is not None and kept.shape == buffer.shape:
                buffer.copy_(kept)

    @torch.no_grad()
    def moved(self) -> tuple[float, float]:
        """How far the parameters are from the copies: length of the difference against the copies' own length, and the
        share of single numbers that differ at all."""
        copies = self._copies or self._read()
        distance = length = 0.0
        changed = total = 0
        for name, parameter in self._model.named_parameters():
            if name in copies:
                kept = copies[name].to(parameter.device)
                distance += float((parameter.float() - kept.float()).square().sum())
                length += float(kept.float().square().sum())
                changed += int((parameter != kept).sum())
                total += kept.numel()
        return (distance / length) ** 0.5 if length else 0.0, changed / total if total else 0.0

    def remove(self) -> None:
        """Let go of the copies."""
        self._copies = {}
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def _read(self) -> dict[str, Tensor]:
        if self._file is None:
            return {}
        copies: dict[str, Tensor] = torch.load(self._file, map_location="cpu", mmap=True, weights_only=True)
        return copies


@contextmanager
def as_it_was(model: nn.Module, directory: Path | None = None) -> Iterator[Snapshot]:
    """Within, the trained parameters may change; afterwards they, the buffers, gradients, modes and all random states
    are as before, bit for bit."""
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters() if parameter.grad is not None}
    model.zero_grad(set_to_none=True)
    snapshot = Snapshot(model, directory)
    with ExitStack() as stack:
        stack.callback(snapshot.remove)
        stack.enter_context(_all_random_states_kept(next(model.parameters()).device))
        try:
            yield snapshot
        finally:
            snapshot.put_back()
            model.zero_grad(set_to_none=True)
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for module, mode in modes.items():
                module.training = mode


@contextmanager
def _all_random_states_kept(device: torch.device) -> Iterator[None]:
    with random_state_kept():
        if device.type == "cpu":
            yield
            return
        with torch.random.fork_rng(devices=[device], device_type=device.type):
            yield


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Within, the model is in training mode, so that activation checkpointing stays on, and nothing is dropped.

    Dropout modules are put into evaluation mode; the rates that attention layers keep as plain numbers
    (``attention_dropout``, ``dropout`` …) are set to 0.
    """
    rates: list[tuple[nn.Module, str, Any]] = []
    modes = {module: module.training for module in model.modules()}
    model.train()
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.training = False
            continue
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float) and value:
                rates.append((module, name, value))
    for module, name, _ in rates:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, value in rates:
            setattr(module, name, value)
        for module, mode in modes.items():
            module.training = mode
