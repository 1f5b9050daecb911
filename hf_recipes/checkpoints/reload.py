"""Loads a checkpoint's tensors as a user of safetensors would, and compares them with a model in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from hf_recipes.checkpoints.findings import Findings
from hf_recipes.checkpoints.scan import FileScan
from hf_recipes.core.sharding import is_shard
from hf_recipes.core.tensors import torch_dtype


def check_reload(
    directory: Path, scans: Mapping[str, FileScan], findings: Findings, live: LiveTensors | None = None
) -> None:
    """Load every tensor through safetensors, one at a time; with `live`, compare it bit for bit with the model."""
    stored: dict[str, set[str]] = {}
    for file, scan in scans.items():
        if scan.tensors is None:
            continue
        folder = str(PurePosixPath(file).parent)
        names = stored.setdefault(folder, set())
        try:
            for name, tensor in _load(directory / file):
                names.add(name)
                facts = scan.tensors.get(name)
                if not facts or facts.shape != tuple(tensor.shape) or torch_dtype(facts.dtype) != tensor.dtype:
                    findings.problem(file, "loads with another dtype or shape than its header has", name)
                elif live:
                    live.compare(file, folder, name, tensor, findings)
        except (SafetensorError, OSError) as error:
            findings.problem(file, f"cannot be loaded ({error})")
    if live:
        live.report_missing(stored, findings)


def _load(file: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118 - not a dict
            yield name, opened.get_tensor(name)


class LiveTensors:
    """The tensors of a model as `save_pretrained` writes them.

    Args:
        expected: folder in the checkpoint (``.`` for the checkpoint itself) → name → tensor: all of these must be
            stored, save those that share their memory with a stored one (tied weights).
        others: tensors that may be stored too, by name.
    """

    def __init__(self, expected: dict[str, dict[str, Tensor]], others: Mapping[str, Tensor]) -> None:
        self.expected = expected
        self.others = others

    def compare(self, file: str, folder: str, name: str, stored: Tensor, findings: Findings) -> None:
        """Add a problem unless the model has exactly these bits under this name."""
        tensor = self.expected.get(folder, {}).get(name, self.others.get(name))
        if tensor is None:
            findings.problem(file, "is not in the model", name)
        elif not _same_bits(tensor, stored):
            findings.problem(file, "differs from the model in memory", name)

    def report_missing(self, stored: Mapping[str, set[str]], findings: Findings) -> None:
        """Add a problem for each tensor of the model that no file holds."""
        for folder, tensors in self.expected.items():
            names = stored.get(folder, set())
            kept = {_memory(tensors[name]) for name in names if name in tensors}
            for name, tensor in tensors.items():
                if name not in names and _memory(tensor) not in kept:
                    findings.problem(folder, "is in the model but not in the checkpoint", name)


def _same_bits(live: Tensor, stored: Tensor) -> bool:
    if live.dtype != stored.dtype or live.shape != stored.shape:
        return False
    live = live.detach().cpu().contiguous()
    return torch.equal(live.reshape(-1).view(torch.uint8), stored.reshape(-1).view(torch.uint8))


def _memory(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.device, tensor.data_ptr(), tensor.shape


def live_tensors(model: nn.Module, stored: set[str]) -> LiveTensors | None:
    """Collect what `save_pretrained` (or a plain state dict) would write, by reference.

    Args:
        model: the Trainer's unwrapped model: plain, transformers', or PEFT's.
        stored: the names found in the checkpoint, which show whether transformers saves under other names than it
            keeps in memory.

    Returns:
        None where this process does not hold all of the model: it is sharded over ranks, or offloaded.
    """
    from peft import PeftModel, get_peft_model_state_dict

    model = getattr(model, "_orig_mod", model)  # torch.compile
    state = model.state_dict()
    if any(_is_partial(tensor) for tensor in (*model.parameters(), *state.values()) if isinstance(tensor, Tensor)):
        return None
    if isinstance(model, PeftModel):
        expected = {
            # Embeddings may be stored besides: asking PEFT whether they are would ask the Hub about the base model.
            "." if adapter == "default" else adapter: get_peft_model_state_dict(
                model, state_dict=state, adapter_name=adapter, save_embedding_layers=False
            )
            for adapter in model.peft_config
        }
        return LiveTensors(expected, state)
    if getattr(model, "_hf_peft_config_loaded", False):  # `model.add_adapter`, PEFT inside transformers
        adapter = cast(Any, model).get_adapter_state_dict(state_dict=state)
        return LiveTensors({".": {f"base_model.model.{name}": tensor for name, tensor in adapter.items()}}, {})
    for name in getattr(model, "_keys_to_ignore_on_save", None) or ():
        state.pop(name, None)
    if not stored <= set(state) and hasattr(model, "save_pretrained"):
        from transformers.core_model_loading import revert_weight_conversion

        state = revert_weight_conversion(model, state)
    return LiveTensors({".": state}, {})


def _is_partial(tensor: Tensor) -> bool:
    return tensor.is_meta or is_shard(tensor)
