"""Run by `test_background.py`: in two children an error ends the training while checkpoint-2 is still to be verified.
The second one's verification does not end, and it is interrupted once more."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from checkpoint_helpers import make_trainer
from transformers import TrainerCallback

from hf_recipes.checkpoints import keeper
from hf_recipes.checkpoints.saved import Outcome, Saved, settle

SECONDS = {"slow": 1.5, "stuck": 600.0}


class Raises(TrainerCallback):
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise RuntimeError("out of luck")


def train(output: Path, seconds: float) -> None:
    def settle_later(saved: Saved) -> Outcome:
        time.sleep(seconds)
        return settle(saved)

    keeper.settle = settle_later
    torch.set_num_threads(1)
    callbacks = [keeper.CheckpointKeeper(trial_save=False), Raises()]
    make_trainer(output, callbacks, save_steps=2, max_steps=4).train()


def fork(output: Path, mode: str) -> tuple[int, int]:
    """Start a child that trains and leaves as a program does; its process id and the end of its standard error."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    os.dup2(write, 2)
    train(output / mode, SECONDS[mode])
    sys.exit(0)


def listen(child: int, read: int, interrupt: bool) -> dict[str, object]:
    """Its last words and status; `interrupt` it when it says what it still waits for."""
    errors = ""
    with open(read, errors="replace") as stream:
        for line in stream:
            errors += line
            if interrupt and "interrupt to leave without" in line:
                os.kill(child, signal.SIGINT)
    return {"status": os.waitpid(child, 0)[1], "errors": errors}


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    children = [(mode, *fork(Path(sys.argv[1]), mode)) for mode in SECONDS]
    print(json.dumps([listen(child, read, mode == "stuck") for mode, child, read in children]))
