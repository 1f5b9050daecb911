"""Run under torchrun by `test_rank_watch.py`: ranks that differ, dawdle, leave or die.

`rank_two_ranks.py DIRECTORY` runs all scenarios that both ranks live through, one after another; with the name of a
deadly one after it, that alone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from two_ranks import leave_group
from watch_helpers import PoisonModel, logged, make_trainer, rows, weights

from hf_recipes.callbacks.rank_watch import RankWatch, describe_missing_ranks
from hf_recipes.core import ranks

RANK = int(os.environ.get("RANK", "0"))


class Does(TrainerCallback):
    """Calls something on one rank at the given event of one step."""

    def __init__(self, event: str, step: int, action: Callable[[Any], None], rank: int = 1) -> None:
        def at_event(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step and rank == RANK:
                action(kwargs["model"])

        setattr(self, event, at_event)


class SlowRow(list):
    """Rows of which one takes its time on rank 1, as a row on a stalled disk does."""

    def __init__(self, made: list[Any], row: int, seconds: float) -> None:
        super().__init__(made)
        self.row, self.seconds = row, seconds

    def __getitem__(self, place: Any) -> Any:
        if place == self.row and RANK == 1:
            time.sleep(self.seconds)
        return super().__getitem__(place)


class SlowForward(PoisonModel):
    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if RANK == 1 and self.training:
            time.sleep(0.25)
        return super().forward(input_ids, labels)


def nudge(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model.head.weight[3, 5] += 1e-6


def train(path: Path, *callbacks: TrainerCallback, watched: bool = True, **settings: Any) -> dict[str, Any]:
    watch = RankWatch(late_seconds=3, checksum_every=2)
    settings = {"data": rows(256), "gradient_accumulation_steps": 2, "max_steps": 8, **settings}
    trainer = make_trainer(path, [*callbacks, *([watch] if watched else [])], **settings)
    trainer.train()
    assert trainer.args.world_size == 2
    return {
        "step": trainer.state.global_step,
        "weights": [str(value) for value in weights(trainer.model).tolist()],
        "losses": logged(trainer, "loss"),
        "hooks": len(trainer.model._forward_hooks) + len(trainer.model._forward_pre_hooks),
        "threads": [thread.name for thread in threading.enumerate() if thread.name == "rank-watch"],
        "sigterm": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
    }


def resumed(path: Path) -> dict[str, Any]:
    """Weights that came apart stay one series after a resume."""
    train(path, Does("on_step_end", 2, nudge), max_steps=4, save_strategy="steps", save_steps=4)
    watch = RankWatch(checksum_every=2)
    watch.begin(type("State", (), {"global_step": 4, "stateful_callbacks": {"RankWatch": saved_state(path)}}))
    return {"in_series": sorted(watch.detector.in_series)}


def saved_state(path: Path) -> Any:
    from transformers import TrainerState

    return TrainerState.load_from_json(str(path / "checkpoint-4" / "trainer_state.json")).stateful_callbacks[
        "RankWatch"
    ]


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "healthy": lambda path: train(path, eval_strategy="steps", eval_steps=3, save_strategy="steps", save_steps=5),
    "unwatched": lambda path: train(path, watched=False),
    "seed": lambda path: train(path, seed=RANK, data_seed=7),
    "rows": lambda path: train(path, data=rows(256 - RANK * 8)),
    "nudged": lambda path: train(path, Does("on_step_end", 3, nudge)),
    "nudged at the end": lambda path: train(path, Does("on_optimizer_step", 6, nudge), max_steps=7),
    "own gradient": lambda path: train(path, Does("on_pre_optimizer_step", 4, double_gradient)),
    "resumed": resumed,
    # Row 43 is of step 11: 2 rows a rank and step, 4 a step.
    "late": lambda path: train(path, data=SlowRow(rows(256), 43, 8.0), max_steps=14),
    "late in forward": lambda path: train(path, Does("on_step_begin", 9, lambda _: time.sleep(5)), max_steps=14),
    "slow": lambda path: train(path, model=SlowForward(), gradient_accumulation_steps=1, max_steps=45),
}


def double_gradient(model: torch.nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(2)


def die(model: torch.nn.Module) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(model: torch.nn.Module) -> None:
    raise RuntimeError("the disk of rank 1 is full")


def collective_raises(path: Path) -> None:
    """What a training script of its own can say when a collective raises."""
    try:
        train(path, Does("on_step_begin", 4, die))
    except Exception:
        (path / "told.txt").write_text(describe_missing_ranks() or "")
        raise


def ended_early(path: Path) -> None:
    """Both then wait in different collectives; nothing but a time-out would end it."""
    threading.Timer(20, lambda: os._exit(3)).start()
    train(path, data=rows(24 - RANK * 8), max_steps=-1, num_train_epochs=1, gradient_accumulation_steps=1)


def terminated_in_a_collective(path: Path) -> None:
    """Rank 0 waits within native code, where Python runs no handler, when the launcher ends the run."""
    hang = Does("on_step_begin", 4, lambda _: time.sleep(600))
    if RANK == 1:
        threading.Timer(15, lambda: os.kill(os.getppid(), signal.SIGTERM)).start()
    train(path, hang)


DEADLY: dict[str, Callable[[Path], Any]] = {
    "rank 1 killed": lambda path: train(path, Does("on_step_begin", 4, die)),
    "rank 0 killed": lambda path: train(path, Does("on_step_begin", 4, die, rank=0)),
    "rank 1 killed in a wait": lambda path: train(
        path, Does("on_step_begin", 4, lambda _: time.sleep(600), rank=0), Does("on_step_begin", 4, die)
    ),
    "rank 1 failed": lambda path: train(path, Does("on_step_begin", 4, fail)),
    "both failed": lambda path: train(path, Does("on_step_begin", 4, fail), Does("on_step_begin", 4, fail, rank=0)),
    "told by the script": collective_raises,
    "ended early": ended_early,
    "terminated in a collective": terminated_in_a_collective,
}


def main(directory: Path, name: str | None) -> None:
    torch.set_num_threads(1)
    if name is not None:
        DEADLY[name](directory)
        return
    seen = {}
    for scenario, run in SCENARIOS.items():
        began = time.monotonic()
        seen[scenario] = {**run(directory / scenario), "seconds": time.monotonic() - began}
        ranks.barrier()
    leave_group(directory, seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
