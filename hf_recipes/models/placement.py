"""Where a model's weights go: on one device a rank, whole or sharded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.data_parallel import degrees
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import world_size

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import TrainingArguments

TENSOR_PARALLEL = "tensor parallelism"
FSDP = "FSDP"
ZERO3 = "DeepSpeed ZeRO-3"

_TRUE = ("1", "true", "yes", "on")


def under_launcher() -> bool:
    """Whether this is one of several ranks, also before they have joined a process group."""
    return world_size() > 1 or int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank_device() -> str:
    """The one device of this rank (``cuda:1``, ``cpu`` …): its own under a launcher, else the current one."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or _is_on("ACCELERATE_USE_CPU"):
        return "cpu"
    if under_launcher():
        return f"{accelerator.type}:{os.environ.get('LOCAL_RANK', '0')}"
    return f"{accelerator.type}:{torch.accelerator.current_device_index()}"


def place(model: nn.Module, device: torch.device) -> None:
    """Put a model where the Trainer moves it anyway; one that was loaded onto its device stays there."""
    if not getattr(model, "hf_device_map", None):
        model.to(device)


def sharded_by(arguments: TrainingArguments | None = None) -> str | None:
    """What will shard the weights of each layer (`TENSOR_PARALLEL`, `FSDP`, `ZERO3`), by the launcher's settings or,
    given its arguments, the Trainer's."""
    if arguments is not None and degrees(arguments)[0] > 1:
        return TENSOR_PARALLEL
    if _is_on("ACCELERATE_USE_FSDP") or (arguments is not None and arguments.fsdp):
        return FSDP
    if under_deepspeed() and _zero_stage() == 3:
        return ZERO3
    from transformers.integrations import is_deepspeed_zero3_enabled

    return ZERO3 if is_deepspeed_zero3_enabled() else None


def _zero_stage() -> int | None:
    """The stage that the launcher has told: in its environment, or in the DeepSpeed file that it names there."""
    file = Path(os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none"))
    if not file.is_file():
        return int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "0"))
    try:
        return int(read_json(file)["zero_optimization"]["stage"])
    except (OSError, ValueError, KeyError, TypeError):  # DeepSpeed will say what is wrong with it
        return None


def under_deepspeed() -> bool:
    """Whether DeepSpeed holds the optimizer, at any stage."""
    return _is_on("ACCELERATE_USE_DEEPSPEED")


def device_map_for(asked: Any, *, quantized: bool) -> Any:
    """The ``device_map`` for ``from_pretrained``: never one that spreads a model over cards under a launcher.

    Args:
        asked: What the caller gave, or None.
        quantized: Whether the weights are (to be) quantised: these go onto the rank's device while loading; others
            stay on the CPU, from where the Trainer moves or shards them.

    Returns:
        `asked` in a single process; else one device a rank, or None. A replaced one is told.
    """
    sharding = sharded_by()
    # transformers refuses every device_map under ZeRO-3; its quantisers find the rank's device themselves.
    ours = {"": rank_device()} if quantized and sharding != ZERO3 else None
    if asked is None:
        return ours
    if not under_launcher() and sharding is None:
        return asked
    if asked != ours:
        place = ours[""] if ours else "placed by the Trainer"
        logger.warning("device_map %r is left out under a launcher: one device a rank (%s).", asked, place)
    return ours


def _is_on(variable: str) -> bool:
    return os.environ.get(variable, "").lower() in _TRUE
