"""Run by `test_kill.py`: trains in forked children, kills each with SIGKILL while it saves, resumes, and reports.

A parent that has imported everything and started no threads forks the children, so a trial costs no imports.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from checkpoint_helpers import LossRecorder, make_trainer

from hf_recipes.checkpoints.choose import last_good_checkpoint, resolve_resume
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.core.run_directory import list_checkpoints

STEPS = 40


def train(output: Path, losses: Path, resume: bool) -> None:
    """Train to the end, saving at every step."""
    torch.set_num_threads(1)
    checkpoint = resolve_resume("last", output) if resume else None
    keeper = CheckpointKeeper(save_total_limit=3)
    trainer = make_trainer(output, [LossRecorder(losses), keeper], max_steps=STEPS)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    assert keeper.failed is None, keeper.failed


def fork(output: Path, losses: Path, resume: bool) -> int:
    """Start `train` in a child; its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        train(output, losses, resume)
        code = 0
    finally:
        os._exit(code)


def newest_step(output: Path) -> int:
    checkpoints = list_checkpoints(output)
    return int(checkpoints[-1].name.split("-")[1]) if checkpoints else 0


def kill_while_saving(output: Path, child: int, chance: random.Random) -> None:
    """SIGKILL the child at a random moment soon after it has begun a checkpoint beyond the ones that are there."""
    begun = newest_step(output) + chance.randint(1, 3)
    while newest_step(output) < begun:
        time.sleep(0.0005)
    time.sleep(chance.uniform(0, 0.04))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def main(directory: Path, kills: int, seed: int) -> dict[str, object]:
    """Kill and resume `kills` times, then let the run end; compare with one that was never stopped."""
    chance = random.Random(seed)
    output, losses = directory / "killed", directory / "killed.jsonl"
    trials = []
    for trial in range(kills):
        child = fork(output, losses, resume=trial > 0)
        kill_while_saving(output, child, chance)
        good = last_good_checkpoint(output)
        trials.append({"good": good.path and good.path.name, "skipped": [path.name for path, _ in good.skipped]})
        if good.path is None:  # killed in the very first save: nothing to go on from, and it says so
            trials[-1]["none"] = True
            child = fork(output, losses, resume=False)
            while last_good_checkpoint(output).path is None:
                time.sleep(0.01)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    _, status = os.waitpid(fork(output, losses, resume=True), 0)
    _, unbroken = os.waitpid(fork(directory / "unbroken", directory / "unbroken.jsonl", resume=False), 0)
    return {"trials": trials, "statuses": [status, unbroken], "last": newest_step(output)}


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR)
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
