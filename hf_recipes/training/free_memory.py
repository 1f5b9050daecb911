"""How much memory a rank may still take, and how much of it gradients and optimizer will."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch
from torch import nn

# Left free: fragmentation, kernels' workspaces, the loss, evaluation.
MARGIN = 0.15
_CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
# Bytes of optimizer state for each byte of trained parameter (4-byte parameters; Adam keeps two numbers of each).
_STATES_OF: dict[str, float] = {"adafactor": 0.1, "sgd": 1.0, "lion": 1.0, "rmsprop": 1.0, "adagrad": 1.0}
_ADAM_STATES = 2.0


def free_bytes(device: torch.device) -> int:
    """Memory that this rank may still take on `device`; on a CPU an even share of what the machine, or the container,
    has free."""
    if device.type != "cpu":
        free, _ = torch.accelerator.get_memory_info(device)
        return free + torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
    free = psutil.virtual_memory().available
    for limit_file, used_file in _CGROUP_LIMITS:
        limit, used = _number(limit_file), _number(used_file)
        if limit is not None and used is not None:
            free = min(free, max(0, limit - used))
    return free // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # no such file, or `max`
        return None


def training_state_bytes(model: nn.Module, optimizer: str, ranks: int) -> float:
    """Bytes of gradients, optimizer states and, with several ranks, DDP's buckets, for the trained parameters.

    Args:
        model: With its trainable parameters set.
        optimizer: The Trainer's ``optim``.
        ranks: World size.
    """
    trained = sum(each.numel() * each.element_size() for each in model.parameters() if each.requires_grad)
    states = next((size for name, size in _STATES_OF.items() if name in optimizer), _ADAM_STATES)
    if "8bit" in optimizer:
        states /= 4
    return trained * (1 + states + (1 if ranks > 1 else 0))
