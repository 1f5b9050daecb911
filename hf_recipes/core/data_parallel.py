"""How many ranks see rows of their own: with tensor or context parallelism several ranks work on the same ones."""

from __future__ import annotations

from typing import Any

# Kept with the Trainer's arguments as plain numbers: its own `parallelism_config` comes to hold process groups, which
# training_args.bin would then be full of.
_NAME = "degrees"


def set_degrees(arguments: Any, tensor: int = 1, context: int = 1) -> None:
    """Say how many ranks share the matrices, and how many the tokens, of the same rows.

    Args:
        arguments: the Trainer's; changed in place.
        tensor, context: degrees.
    """
    setattr(arguments, _NAME, (tensor, context))


def degrees(arguments: Any) -> tuple[int, int]:
    """The tensor-parallel and the context-parallel degree of a run; 1 where nothing was said."""
    return getattr(arguments, _NAME, (1, 1))


def data_parallel_ranks(arguments: Any) -> int:
    """Ranks, or groups of them, that see different rows.

    Args:
        arguments: the Trainer's.
    """
    tensor, context = degrees(arguments)
    return int(arguments.world_size) // (tensor * context)
