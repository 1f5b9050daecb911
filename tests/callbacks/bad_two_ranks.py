"""Run under torchrun by `test_bad_two_ranks.py`: bad batches and restores on two ranks, each rank's view as JSON."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import TrainerCallback
from two_ranks import leave_group
from watch_helpers import NAN_GRADIENT_ONLY, NAN_LOSS, PoisonModel, logged, make_trainer, optimizer_steps, rows, weights

from hf_recipes.callbacks import non_finite
from hf_recipes.callbacks.finite_weights import weights_not_finite
from hf_recipes.callbacks.non_finite import NonFiniteGuard
from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.core.errors import UserError


def text(tensor: torch.Tensor) -> list[str]:
    """Every value to its last bit."""
    return [str(value) for value in tensor.tolist()]


class AfterStep(TrainerCallback):
    def __init__(self) -> None:
        self.weights: dict[int, list[str]] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights[state.global_step] = text(weights(kwargs["model"]))


def train(output_dir: Path, guard: NonFiniteGuard, markers: dict[int, int], **arguments: Any) -> dict[str, Any]:
    """Two micro-batches a step: step 2 takes rows 4 to 7, rank 0 rows 4 and 6, rank 1 rows 5 and 7."""
    after = AfterStep()
    trainer = make_trainer(
        output_dir, [guard, after], rows(64, markers), gradient_accumulation_steps=2, max_steps=6, **arguments
    )
    trainer.train()
    assert trainer.args.world_size == 2
    return {
        "step": trainer.state.global_step,
        "tripped": guard.tripped,
        "weights": after.weights,
        "optimizer_steps": optimizer_steps(trainer),
        "rates": logged(trainer, "learning_rate"),
    }


def restore(output_dir: Path) -> dict[str, Any]:
    """Saved at steps 2, 4 and 6; row 17 makes step 5 bad on rank 1."""
    guard = NonFiniteGuard("restore", last_good=lambda directory: last_good_checkpoint(directory).path)
    return train(output_dir, guard, {17: NAN_LOSS}, save_strategy="steps", save_steps=2)


def restore_from_a_disk_that_rank_1_lacks(output_dir: Path) -> dict[str, Any]:
    real = non_finite.restore_training_state

    def unreadable(model: Any, optimizer: Any, checkpoint: Path) -> None:
        if dist.get_rank() == 1:
            checkpoint = checkpoint / "not-here"
        real(model, optimizer, checkpoint)

    non_finite.restore_training_state = unreadable
    try:
        return restore(output_dir)
    finally:
        non_finite.restore_training_state = real


def files_up_to(limit: int, output_dir: Path) -> dict[str, Any]:
    non_finite.MAX_FILES, kept = limit, non_finite.MAX_FILES
    try:
        return train(output_dir, NonFiniteGuard("skip"), {7: NAN_GRADIENT_ONLY, 11: NAN_GRADIENT_ONLY})
    finally:
        non_finite.MAX_FILES = kept


def sharded_weights() -> dict[str, Any]:
    """A NaN in rank 1's part of a sharded parameter."""
    from torch.distributed.fsdp import fully_shard

    model = PoisonModel()
    fully_shard(model.head, mesh=dist.init_device_mesh("cpu", (2,)))
    healthy = weights_not_finite(model)
    if dist.get_rank() == 1:
        model.head.weight.detach().to_local()[0, 0] = math.nan
    guard = NonFiniteGuard("restore", last_good=lambda directory: None)
    try:
        guard._check_restorable(model, torch.optim.AdamW(model.parameters()))
        refused = None
    except UserError as error:
        refused = str(error)
    return {"healthy": healthy, "poisoned": weights_not_finite(model), "refused": refused}


def bad_start(output_dir: Path) -> dict[str, Any]:
    """Weights that are not finite on one rank are refused on both."""
    model = PoisonModel()
    if dist.get_rank() == 1:
        model.head.bias.data[0] = math.nan
    trainer = make_trainer(output_dir, [NonFiniteGuard()], model=model)
    try:  # not `train`: there DDP gives rank 0's weights to all
        trainer.callback_handler.on_train_begin(trainer.args, trainer.state, trainer.control)
    except UserError as error:
        return {"refused": str(error)}
    return {"refused": None}


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "loss on rank 1": lambda path: train(path, NonFiniteGuard("skip"), {5: NAN_LOSS}),
    "gradient averaged": lambda path: train(path, NonFiniteGuard("skip"), {7: NAN_GRADIENT_ONLY}),
    "few files": lambda path: files_up_to(3, path),
    "restore": restore,
    "restore fails on rank 1": restore_from_a_disk_that_rank_1_lacks,
    "sharded weights": lambda path: sharded_weights(),
    "bad start": bad_start,
}


def main(output_dir: Path) -> None:
    torch.set_num_threads(1)
    seen = {name: scenario(output_dir / name) for name, scenario in SCENARIOS.items()}
    leave_group(output_dir, seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
