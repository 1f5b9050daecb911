"""The process a run finds itself in: number of ranks, CPU threads, and whether they are what was asked for."""

from __future__ import annotations

import os
import threading
import time

from hf_recipes.core.cores import usable_cores
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger

# Set by `hf-recipes sft` for the ranks it starts, to its process id: it reads status.json itself, so a rank need not
# exit non-zero.
LAUNCHED_BY_US = "HF_RECIPES_LAUNCHED"
# Set for the ranks of a machine that is not a job's first, to a file in which they leave a code and a sentence.
MACHINE_END = "HF_RECIPES_MACHINE_END"
_LOOK_SECONDS = 2.0


def leave_with_parent(parent_pid: int) -> None:
    """End this process soon after `parent_pid` is gone: a parent killed by SIGKILL cannot take its ranks along."""
    if os.name == "nt":  # asking whether a process lives would end it there
        return

    def watch() -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            try:
                os.kill(parent_pid, 0)
            except ProcessLookupError:
                os._exit(1)

    threading.Thread(target=watch, daemon=True, name="leave-with-parent").start()


def check_world_size(asked: int | None, there: int) -> None:
    """Compare the number of ranks asked for with the number there is.

    Under `accelerate launch --cpu --num_processes 2` one silently gets two-for-one: a single rank.

    Raises:
        UserError: they differ, with the cure.
    """
    if asked is not None and asked != there:
        raise UserError(
            f"{asked} processes were asked for, {there} came up: start with `hf-recipes sft --num_processes {asked}`, "
            f"or on a CPU with ACCELERATE_USE_CPU=true and `accelerate launch --multi_gpu --num_processes {asked}`."
        )


def threads_per_rank(cores: int, local_ranks: int) -> int:
    """CPU threads for each of `local_ranks` processes sharing `cores`: an even share, at least one."""
    return max(1, cores // max(1, local_ranks))


def use_all_cores() -> None:
    """Undo the single thread that launchers set for each rank (OMP_NUM_THREADS=1), which makes CPU runs crawl."""
    import torch

    if torch.accelerator.is_available():
        return
    wanted = threads_per_rank(usable_cores(), int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if torch.get_num_threads() == 1 < wanted:
        torch.set_num_threads(wanted)
        logger.info("CPU threads per process set to %d (the launcher had left 1).", wanted)
