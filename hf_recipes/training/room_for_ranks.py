"""Whether a machine has the memory to start so many processes at all, asked before any is started."""

from __future__ import annotations

from hf_recipes.core.container_memory import free_memory_bytes
from hf_recipes.core.errors import UserError

# A rank that has imported torch, transformers, accelerate and trl, before its model: 570 MB, of which 150 are shared.
RANK_BYTES = 400 * 2**20


def check_room_for_ranks(ranks: int) -> None:
    """Refuse more processes than this machine's free memory holds: the machine would stand still instead of starting.

    Args:
        ranks: processes to be started on this machine.

    Raises:
        UserError: how many may be.
    """
    room = max(1, free_memory_bytes() // RANK_BYTES)
    if ranks > room:
        raise UserError(
            f"--num_processes: {ranks} processes cannot start on this machine: each takes {RANK_BYTES / 2**30:.1f} GiB "
            f"before its model, and {free_memory_bytes() / 2**30:.1f} GiB are free: give {room} or fewer."
        )
