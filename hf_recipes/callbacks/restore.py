"""Putting a training run back to a checkpoint while it runs: weights and optimizer state, in place."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper
from safetensors import SafetensorError
from torch.distributed.fsdp import FullyShardedDataParallel

from hf_recipes.core.errors import UserError
from hf_recipes.core.sharding import is_shard
from hf_recipes.core.tensors import entries_by_name

_OPTIMIZER = "optimizer.pt"
# What torch, safetensors and PEFT answer to files that are absent, cut short, damaged or another model's.
_UNREADABLE = (OSError, EOFError, KeyError, ValueError, RuntimeError, pickle.UnpicklingError, SafetensorError)
# What torch's optimizers and schedulers keep of learning rates in a parameter group (the last two: OneCycleLR).
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


def why_not_restorable(model: torch.nn.Module, optimizer: Any) -> str | None:
    """Why a run cannot be put back while it runs, as the beginning of a sentence, or None: it can."""
    if isinstance(optimizer, DeepSpeedOptimizerWrapper):
        return "DeepSpeed holds the weights and the optimizer"
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()) or any(
        is_shard(parameter) for parameter in model.parameters()
    ):
        return "the model is sharded"
    if any(getattr(config, "prefix_projection", False) for config in _adapters(model).values()):
        return "of a projected prefix only the output is saved"
    return None


def restore_training_state(model: torch.nn.Module, optimizer: Any, checkpoint: Path) -> None:
    """Put the weights and the optimizer state of a Trainer's checkpoint back, in place; learning rates stay.

    Args:
        model: whole on this rank, not sharded; as it was saved, with a PEFT adapter or without.
        optimizer: over its parameters.
        checkpoint: as the Trainer writes it.

    Raises:
        UserError: the checkpoint cannot be read, or is not one of this model.
    """
    try:
        state = torch.load(checkpoint / _OPTIMIZER, map_location="cpu", weights_only=True)
        if _adapters(model):
            _restore_adapters(model, checkpoint)
        else:
            _restore_whole(model, checkpoint)
        rates = [{key: group[key] for key in _RATES if key in group} for group in optimizer.param_groups]
        optimizer.state.clear()  # so that the old state and the new are not in memory together
        optimizer.load_state_dict(state)
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group.update(rate)
    except UserError:
        raise
    except _UNREADABLE as error:
        text = " ".join(str(error).split())[:200]
        raise UserError(f"'{checkpoint}' cannot be put back ({type(error).__name__}: {text})") from error


def lower_learning_rate(optimizer: Any, lr_scheduler: Any, factor: float) -> float:
    """Multiply all learning rates by `factor`, now and in the rest of the schedule; checkpoints keep it.

    Returns:
        The rate of the first parameter group.
    """
    for group in optimizer.param_groups:
        group.update({key: _times(group[key], factor) for key in _RATES if key in group})
    for scheduler in (lr_scheduler, *getattr(lr_scheduler, "_schedulers", ())):  # SequentialLR and its parts
        for name in ("base_lrs", "_last_lr"):
            if hasattr(scheduler, name):
                setattr(scheduler, name, [_times(rate, factor) for rate in getattr(scheduler, name)])
    return float(optimizer.param_groups[0]["lr"])


def _times(rate: Any, factor: float) -> Any:
    # A tensor stays the same one: a captured or compiled step reads it.
    return rate.mul_(factor) if isinstance(rate, torch.Tensor) else rate * factor


def _adapters(model: torch.nn.Module) -> dict[str, Any]:
    """PEFT's configurations by adapter name; none for a model without adapters."""
    return dict(getattr(model, "peft_config", None) or {})


def _restore_adapters(model: torch.nn.Module, checkpoint: Path) -> None:
    from peft import load_peft_weights, set_peft_model_state_dict

    for name, config in _adapters(model).items():
        directory = checkpoint / name if (checkpoint / name).is_dir() else checkpoint
        if not any(directory.glob("adapter_model.*")):
            raise UserError(f"'{directory}' holds no adapter_model")
        weights = load_peft_weights(str(directory), device="cpu")
        result = set_peft_model_state_dict(model, weights, adapter_name=name)
        if result.unexpected_keys:
            raise UserError(f"'{directory}' holds '{result.unexpected_keys[0]}', which the model does not have")
        if not config.is_prompt_learning and len(_adapters(model)) == 1:
            _check_all_there(model, set(result.missing_keys), directory)


def _restore_whole(model: torch.nn.Module, checkpoint: Path) -> None:
    held = getattr(model, "_orig_mod", model).state_dict()  # the names without torch.compile's wrapper
    entries = entries_by_name(checkpoint)
    for name, entry in entries.items():
        if name not in held or tuple(held[name].shape) != entry.shape:
            raise UserError(f"'{checkpoint}' holds '{name}' {list(entry.shape)}, which the model does not have so")
    restored = {held[name].data_ptr() for name in entries}  # of tied weights one name is saved
    absent = {name for name, tensor in held.items() if name not in entries and tensor.data_ptr() not in restored}
    _check_all_there(getattr(model, "_orig_mod", model), absent, checkpoint)
    with torch.no_grad():
        for name, entry in entries.items():
            held[name].copy_(entry.load())


def _check_all_there(model: torch.nn.Module, absent: set[str], directory: Path) -> None:
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and name in absent:
            raise UserError(f"'{directory}' does not hold '{name}', which is trained")
