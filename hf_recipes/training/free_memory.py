"""How much memory a rank may still take, and how much of it gradients and optimizer will."""

from __future__ import annotations

import os

import torch
from torch import nn

from hf_recipes.core.container_memory import free_memory_bytes

# Left free: fragmentation, kernels' workspaces, the loss, evaluation.
MARGIN = 0.15
# Bytes of optimizer state for each byte of trained parameter (4-byte parameters; Adam keeps two numbers of each).
_STATES_OF: dict[str, float] = {"adafactor": 0.1, "sgd": 1.0, "lion": 1.0, "rmsprop": 1.0, "adagrad": 1.0}
_ADAM_STATES = 2.0


def free_bytes(device: torch.device) -> int:
    """Memory that this rank may still take on `device`; on a CPU an even share of what the machine, or the container,
    has free."""
    if device.type != "cpu":
        free, _ = torch.accelerator.get_memory_info(device)
        return free + torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
    return free_memory_bytes() // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


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
