"""What the model in memory held when it was saved, as a few numbers a tensor: training goes on, and a checkpoint can
still be compared with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

import torch
from torch import Tensor, nn

from hf_recipes.checkpoints.verification.findings import Findings
from hf_recipes.core.bit_sums import bit_sums
from hf_recipes.core.sharding import is_shard

Names = Mapping[str, set[str]]
"""Folder in the checkpoint (``.`` for the checkpoint itself) → names of the tensors stored there."""


@dataclass(frozen=True)
class LiveTensor:
    """A tensor's dtype, shape and `bit_sums`; `memory` is the same for tied ones."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    sums: tuple[int, int]
    memory: tuple[Any, ...]


@dataclass(frozen=True)
class LiveSums:
    """The tensors of a model as `save_pretrained` writes them.

    `expected`: folder → name → tensor: all of these must be stored, save those that share their memory with a stored
    one (tied weights). `others`: tensors that may be stored too.
    """

    expected: dict[str, dict[str, LiveTensor]]
    others: dict[str, LiveTensor]

    def compare(self, file: str, folder: str, name: str, stored: Tensor, findings: Findings) -> None:
        """Add a problem unless the model had exactly these bits under this name."""
        live = self.expected.get(folder, {}).get(name) or self.others.get(name)
        if live is None:
            findings.problem(file, "is not in the model", name)
        elif (live.dtype, live.shape) != (stored.dtype, tuple(stored.shape)) or live.sums != _sums_of(stored):
            findings.problem(file, "differs from the model in memory", name)

    def report_missing(self, stored: Names, findings: Findings) -> None:
        """Add a problem for each tensor of the model that no file holds."""
        for folder, tensors in self.expected.items():
            names = stored.get(folder, set())
            kept = {tensors[name].memory for name in names if name in tensors}
            for name, tensor in tensors.items():
                if name not in names and tensor.memory not in kept:
                    findings.problem(folder, "is in the model but not in the checkpoint", name)


def _sums_of(stored: Tensor) -> tuple[int, int]:
    return bit_sums({"": stored})[""]


def take_live_sums(model: nn.Module, stored: Names) -> LiveSums | None:
    """Sum up what `save_pretrained` (or a plain state dict) writes, where it lies: two passes over it, one wait for the
    device.

    Args:
        model: the Trainer's unwrapped model: plain, transformers', or PEFT's.
        stored: the names found in the checkpoint, which show whether transformers saves under other names than it
            keeps in memory.

    Returns:
        None where this process does not hold all of the model: it is sharded over ranks, or offloaded.
    """
    model = getattr(model, "_orig_mod", model)  # torch.compile
    if not is_whole(model):
        return None
    names = set().union(*stored.values())
    expected, others = _tensors_to_save(model, names)
    others = {name: tensor for name, tensor in others.items() if name in names}
    return LiveSums({folder: _sum_up(tensors) for folder, tensors in expected.items()}, _sum_up(others))


def is_whole(model: nn.Module) -> bool:
    """Whether this process holds every value of the model. The state dict is not asked for it: of FSDP 1 it is gathered
    by all ranks together."""
    return not any(tensor.is_meta or is_shard(tensor) for tensor in chain(model.parameters(), model.buffers()))


def _tensors_to_save(model: nn.Module, stored: set[str]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """What must be stored, by folder and name, and what may be, by reference."""
    from peft import PeftModel, get_peft_model_state_dict

    state = model.state_dict()
    if isinstance(model, PeftModel):
        expected = {
            # Embeddings may be stored besides: asking PEFT whether they are would ask the Hub about the base model.
            "." if adapter == "default" else adapter: get_peft_model_state_dict(
                model, state_dict=state, adapter_name=adapter, save_embedding_layers=False
            )
            for adapter in model.peft_config
        }
        return expected, state
    if getattr(model, "_hf_peft_config_loaded", False):  # `model.add_adapter`, PEFT inside transformers
        adapter = cast(Any, model).get_adapter_state_dict(state_dict=state)
        return {".": {f"base_model.model.{name}": tensor for name, tensor in adapter.items()}}, {}
    for name in getattr(model, "_keys_to_ignore_on_save", None) or ():
        state.pop(name, None)
    if not stored <= set(state) and hasattr(model, "save_pretrained"):
        from transformers.core_model_loading import revert_weight_conversion

        state = revert_weight_conversion(model, state)
    return {".": state}, {}


def _sum_up(tensors: Mapping[str, Any]) -> dict[str, LiveTensor]:
    plain = {name: tensor.detach() for name, tensor in tensors.items() if isinstance(tensor, Tensor)}
    memory = {name: (tensor.device, tensor.data_ptr(), tensor.shape) for name, tensor in plain.items()}
    once = {place: name for name, place in memory.items()}
    sums = bit_sums({name: plain[name] for name in once.values()})
    return {
        name: LiveTensor(tensor.dtype, tuple(tensor.shape), sums[once[memory[name]]], memory[name])
        for name, tensor in plain.items()
    }
