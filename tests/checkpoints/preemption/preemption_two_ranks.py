"""Run under torchrun by `test_preemption_two_ranks.py`: DDP runs of which one rank alone is asked to stop."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from checkpoint_helpers import LossRecorder, make_trainer
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy
from two_ranks import leave_group

from hf_recipes.callbacks.rank_watch import RankWatch
from hf_recipes.checkpoints.choose import resolve_resume
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.preemption.guard import PreemptionGuard, cut_evaluations
from hf_recipes.core.ranks import barrier, from_main

RANK = int(os.environ["RANK"])


class Asked(TrainerCallback):
    """Sends this process a signal at one event of one step, on one rank, or on both at different steps."""

    def __init__(self, event: str, steps: dict[int, int], number: int = signal.SIGTERM) -> None:
        self.sent = False
        self.predictions = 0

        def at_event(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.predictions += event == "on_prediction_step"
            if state.global_step == steps.get(RANK) and not self.sent:
                self.sent = True
                os.kill(os.getpid(), number)
                time.sleep(0.6)  # the watch on the other ranks looks five times a second

        setattr(self, event, at_event)


def run(path: Path, asked: Asked | None, *, guard_first: bool = True, resume: bool = False, **settings: Any) -> Any:
    guard, watch, keeper = PreemptionGuard(), RankWatch(late_seconds=30), CheckpointKeeper()
    watchers = [guard, watch] if guard_first else [watch, guard]
    recorder = [LossRecorder(path / "losses.jsonl")] if RANK == 0 else []
    callbacks = [*recorder, *([asked] if asked else []), *watchers, keeper]
    evaluates = settings.pop("evaluates", None)
    trainer = make_trainer(path, callbacks, **{"max_steps": 8, "save_strategy": "no", **settings})
    if evaluates:
        trainer.eval_dataset = trainer.train_dataset
        trainer.args.eval_strategy, trainer.args.eval_steps = IntervalStrategy.STEPS, evaluates
        cut_evaluations(trainer)
    assert trainer.args.world_size == 2
    path.mkdir(exist_ok=True)
    checkpoint = from_main(lambda: resolve_resume("last" if resume else None, path))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    guard.close()
    return {
        "preempted": guard.preempted,
        "step": trainer.state.global_step,
        "failed": keeper.failed,
        "predictions": asked.predictions if asked else 0,
        "handler": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    }


SCENARIOS: dict[str, Callable[[Path], Any]] = {
    "unbroken": lambda path: run(path, None),
    "rank 1": lambda path: run(path, Asked("on_step_begin", {1: 2})),
    "watch first": lambda path: run(path, Asked("on_step_begin", {1: 2}), guard_first=False),
    "different steps": lambda path: run(path, Asked("on_substep_end", {0: 3, 1: 2}), gradient_accumulation_steps=2),
    "during a save": lambda path: run(path, Asked("on_save", {0: 4}), save_strategy="steps", save_steps=4),
    "in an evaluation": lambda path: run(path, Asked("on_prediction_step", {1: 4}), evaluates=4),
    "only noticed": lambda path: run(path, Asked("on_step_begin", {1: 2}, signal.SIGUSR1)),
}


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    seen = {}
    for name, scenario in SCENARIOS.items():
        seen[name] = scenario(directory / name)
        barrier()
    seen["resumed"] = run(directory / "rank 1", None, resume=True)
    leave_group(directory, seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
