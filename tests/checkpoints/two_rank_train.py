"""Run under torchrun by `test_two_rank_saves.py`: a tiny DDP run on two CPU ranks; each rank writes what it saw."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any

import torch
from checkpoint_helpers import LossRecorder, make_trainer
from transformers import TrainerCallback
from two_ranks import leave_group

from hf_recipes.checkpoints.choose import resolve_resume
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.core.ranks import from_main


class NoRoom(TrainerCallback):
    """From step 2 on rank 0 cannot write files of more than 64 bytes, as on a full disk."""

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2 and args.process_index == 0:
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, hard))


def main(output: Path, mode: str) -> None:
    torch.set_num_threads(1)
    keeper = CheckpointKeeper(save_total_limit=2)
    rank = int(os.environ["RANK"])
    callbacks = [LossRecorder(output / f"losses-{mode}.jsonl"), *([NoRoom()] if mode == "no-room" else []), keeper]
    trainer = make_trainer(output, callbacks if rank == 0 else callbacks[1:], max_steps=4, remove_unused_columns=False)
    assert trainer.args.world_size == 2
    resume = from_main(lambda: resolve_resume("last" if mode == "resume" else None, output))
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    soft_and_hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft_and_hard[1], soft_and_hard[1]))
    seen = {"failed": keeper.failed, "step": trainer.state.global_step, "resumed": str(resume)}
    leave_group(output, seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
