"""Run under torchrun by `test_two_rank_saves.py`: a tiny DDP run on two CPU ranks; each rank writes what it saw."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from checkpoint_helpers import LossRecorder, make_trainer
from transformers import TrainerCallback
from two_ranks import leave_group

from hf_recipes.checkpoints.choose import resolve_resume
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.lock import take_lock
from hf_recipes.core.errors import UserError
from hf_recipes.core.ranks import from_main


class NoRoom(TrainerCallback):
    """From step 2 on rank 0 cannot write files of more than 64 bytes, as on a full disk."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and args.process_index == 0:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))


def refused_beside_another(output: Path) -> str:
    """What this rank hears when it trains in a directory that a process outside the run writes into."""
    child = from_main(lambda: hold_lock(output))
    try:
        make_trainer(output, [CheckpointKeeper()], remove_unused_columns=False).train()
    except UserError as error:
        return str(error)
    finally:
        if os.environ["RANK"] == "0":
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return "not refused"


def hold_lock(output: Path) -> int:
    """Start a process that holds the lock until it is killed; its id."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        take_lock(output)
        os.write(write, b"x")
        signal.pause()
        os._exit(1)
    os.read(read, 1)
    return child


def main(output: Path, mode: str) -> None:
    torch.set_num_threads(1)
    keeper = CheckpointKeeper(save_total_limit=2)
    rank = int(os.environ["RANK"])
    # On a full disk the recorder could not write either.
    first = NoRoom() if mode == "no-room" else LossRecorder(output / f"losses-{mode}.jsonl")
    callbacks = [first, keeper] if rank == 0 else [keeper]
    trainer = make_trainer(output, callbacks, max_steps=4, remove_unused_columns=False)
    assert trainer.args.world_size == 2
    resume = from_main(lambda: resolve_resume("last" if mode == "resume" else None, output))
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    soft_and_hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft_and_hard[1], soft_and_hard[1]))
    seen = {"failed": keeper.failed, "step": trainer.state.global_step, "resumed": str(resume)}
    if mode == "whole":
        seen["refused"] = refused_beside_another(output)
    leave_group(output, seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
