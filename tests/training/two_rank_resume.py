"""Run by `test_two_rank_resume.py`: runs on two CPU ranks, broken off and resumed; at the end one whose rank 1 is
killed at a step, and which torchrun's agent starts again. Ranks are forked, so that the stack is imported once."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
from resumed_runs import NO_DROPOUT, plain_and_slim, recorded_batches, resume, train
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from hf_recipes.sft import main as sft
from hf_recipes.training.trainer import SupervisedTrainer

KILLED_AT = 6
METHODS = {"lora": 4, "qlora": 8, "full": 4}  # method → the step it is taken up at: mid-epoch, or in the second epoch


def break_off_and_resume(directory: Path) -> dict[str, Any]:
    recipe, seen = directory / "recipe.yaml", {}
    for method, step in METHODS.items():
        whole = train(recipe, directory / method, "--method", method)
        resumed = resume(recipe, directory / method, step, "--method", method)
        seen[method] = {"whole": whole, "resumed": resumed}
    with recorded_batches() as batches:
        numbers = train(recipe, directory / "two", *NO_DROPOUT)
    seen["two"] = {"numbers": numbers, "batches": batches}
    with recorded_batches() as batches:
        # As the run on one rank had it: two accumulated, which two ranks make one.
        numbers = resume(recipe, directory / "one", 4, *NO_DROPOUT, "--gradient_accumulation_steps", "2")
    seen["one by two"] = {"numbers": numbers, "batches": batches}
    return seen


def kill_rank_1() -> None:
    original = SupervisedTrainer.training_step

    def training_step(self: Any, *arguments: Any) -> Any:
        if self.state.global_step == KILLED_AT and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments)

    SupervisedTrainer.training_step = training_step


def on_each_rank(directory: Path) -> None:
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        seen = break_off_and_resume(directory)
        (directory / f"rank{os.environ['RANK']}.json").write_text(json.dumps(seen))
        kill_rank_1()
    with plain_and_slim():
        code = sft(["--config", str(directory / "recipe.yaml"), "--output_dir", str(directory / "elastic")])
    assert code == 0, code


def main(directory: Path) -> None:
    torch.set_num_threads(1)
    # What `torchrun --standalone --nproc_per_node 2 --max-restarts 1` does.
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=str(os.getpid()),
        max_restarts=1,
        start_method="fork",
    )
    elastic_launch(config, on_each_rank)(directory)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
