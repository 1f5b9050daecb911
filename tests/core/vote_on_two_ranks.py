"""Run under torchrun by `test_step_vote.py`: only rank 1 raises a flag, at step 3; each writes when it heard it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch.distributed as distributed
from two_ranks import leave_group

from hf_recipes.core.step_vote import StepVote


def main(directory: Path) -> None:
    distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    vote = StepVote.open()
    heard = {}
    for step in range(1, 6):
        if step == 3 and rank == 1:
            vote.raise_flag("stop", "rank 1 was told to stop")
            vote.raise_flag("stop", "told again")
        heard[step] = vote.count(step)
        assert vote.count(step) is heard[step]  # a second callback asks: nothing is sent
    vote.raise_flag("end", f"rank {rank}")
    again = vote.count_again(5)
    same_for_all_callbacks = StepVote.open() is vote
    leave_group(directory, {"heard": heard, "again": again, "same": same_for_all_callbacks, "left": vote.count(6)})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
