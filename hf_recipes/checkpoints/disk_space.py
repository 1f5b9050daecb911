"""Whether the next checkpoint fits on the disk, and a clean place to write it to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hf_recipes.checkpoints.rotate import remove_checkpoint

_MARGIN = 1.05  # the Trainer's state grows with every log
_ADAM_BYTES = 12  # a value's two moments and its fp32 master, where a strategy hides the optimizer's state


def free_bytes(directory: Path) -> int | None:
    """What an ordinary user may still write there; None where the file system does not tell."""
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return None


def estimate_checkpoint_bytes(model: nn.Module, optimizer: Any, *, save_only_model: bool) -> int:
    """What a first checkpoint will take: the weights that are saved (of an adapter the trained ones, else all) and the
    optimizer's state as it is after a step."""
    trained_only = getattr(model, "peft_config", None) is not None
    saved = [each for each in model.parameters() if each.requires_grad or not trained_only]
    weights = sum(_numel(each) * each.element_size() for each in saved)
    if save_only_model:
        return weights
    state = sum(tensor.numel() * tensor.element_size() for tensor in _tensors(getattr(optimizer, "state", {})))
    return weights + (state or _ADAM_BYTES * sum(_numel(each) for each in saved if each.requires_grad))


def _numel(parameter: Any) -> int:
    return int(getattr(parameter, "ds_numel", parameter.numel()))  # ZeRO-3 leaves an empty one behind


def _tensors(state: Any) -> Iterator[Tensor]:
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from _tensors(value)


def why_not_enough(directory: Path, needed_bytes: int, reusable_bytes: int = 0) -> str | None:
    """Why a checkpoint of `needed_bytes` does not fit, as part of a sentence; None: it fits, or nobody knows.

    Args:
        reusable_bytes: what is freed before it is written.
    """
    free = free_bytes(directory)
    needed = int(needed_bytes * _MARGIN)
    if free is None or free + reusable_bytes >= needed:
        return None
    return f"'{directory}' has {free + reusable_bytes:,} bytes free, and a checkpoint needs {needed:,}"


def empty_directory(directory: Path) -> list[str]:
    """Remove what an earlier attempt left at a checkpoint's place; the names of what was removed. Nothing where nothing
    is there."""
    if not directory.is_dir() or directory.is_symlink():
        return []
    names = sorted(path.name for path in directory.iterdir())
    remove_checkpoint(directory)
    return names
