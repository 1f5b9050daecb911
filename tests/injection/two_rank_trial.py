"""One trial on the ranks that torchrun starts: `two_rank_trial.py DIRECTORY SEED NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from fault_runs import FAULTS_OF_TWO_RANKS
from healthy_runs import HEALTHY_OF_TWO_RANKS
from trial_runs import train


def main(directory: Path, seed: int, name: str) -> None:
    torch.set_num_threads(1)
    runs = [*(fault.run for fault in FAULTS_OF_TWO_RANKS), *HEALTHY_OF_TWO_RANKS]
    (run,) = [each for each in runs if each.name == name]
    trainer = train(run, directory, seed)
    assert trainer.args.world_size == 2
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
