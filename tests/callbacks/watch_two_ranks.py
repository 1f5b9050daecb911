"""Run under torchrun by `test_two_ranks.py`: every scenario on two CPU ranks, and what each rank saw of it as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from two_ranks import leave_group
from watch_helpers import (
    NAN_GRADIENT_ONLY,
    NAN_LOSS,
    NAN_LOSS_ONLY,
    PoisonModel,
    Readings,
    logged,
    make_trainer,
    optimizer_steps,
    rows,
    weights,
)

from hf_recipes.callbacks.build import build_watchers
from hf_recipes.callbacks.gradients import GradientGate


def train(output_dir: Path, watch: str | None, marker: int, row: int) -> dict[str, Any]:
    """A plain DDP Trainer with two micro-batches a step: rows go to ranks in turn, so step 2 takes rows 4 to 7 and
    rank 1 rows 5 and 7."""
    watchers = build_watchers({"non_finite": watch}) if watch else []
    readings = Readings()
    callbacks = [*watchers, readings] if watch else []
    trainer = make_trainer(output_dir, callbacks, rows(64, {row: marker}), gradient_accumulation_steps=2)
    trainer.train()
    assert trainer.args.world_size == 2
    flat = weights(trainer.model)
    return {
        "step": trainer.state.global_step,
        "finite": bool(flat.isfinite().all()),
        "weights": [str(value) for value in flat.tolist()],
        "tripped": watchers[0].tripped if watchers else None,
        "optimizer_steps": optimizer_steps(trainer),
        "losses": logged(trainer, "loss"),
        "norms": [str(norm) for norm in logged(trainer, "grad_norm")],
        "readings": [asdict(reading) for reading in readings.seen] if marker == 0 else None,
    }


def measure_sharded(output_dir: Path, poisoned: bool) -> dict[str, Any]:
    """The gate on FSDP2: one part sharded over both ranks, one left whole, so gradients lie on a mesh and on none."""
    from torch.distributed.fsdp import fully_shard

    whole, sharded = PoisonModel(), PoisonModel()
    fully_shard(sharded.head, mesh=dist.init_device_mesh("cpu", (2,)))
    batch = {key: value[None] for key, value in rows(1)[0].items()}
    for model in (whole, sharded):
        model(**batch)["loss"].backward()  # the same batch on both ranks: averaged gradients equal the local ones
    expected = torch.nn.utils.clip_grad_norm_(whole.parameters(), 0.05)
    if poisoned and dist.get_rank() == 1:
        sharded.head.weight.grad.to_local()[0, 0] = float("nan")

    optimizer = torch.optim.AdamW(sharded.parameters())
    args = SimpleNamespace(max_grad_norm=0.05, device=torch.device("cpu"), fp16=False)
    gate = GradientGate.open(args, sharded, optimizer)
    reading = gate.measure(0, sharded)
    clipped = [sharded.head.weight.grad.full_tensor(), sharded.embedding.weight.grad]
    reference = [whole.head.weight.grad, whole.embedding.weight.grad]
    differences = [(one - other).abs().max().item() for one, other in zip(clipped, reference, strict=True)]
    gate.close(sharded)
    return {
        "norm": str(reading.norm),
        "expected": expected.item(),
        "difference": str(max(differences)),
        "bad": reading.bad and vars(reading.bad),
    }


SCENARIOS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "unguarded": lambda path: train(path, None, NAN_LOSS, 5),
    "loss, first micro-batch": lambda path: train(path, "stop", NAN_LOSS, 5),
    "loss alone, last micro-batch": lambda path: train(path, "stop", NAN_LOSS_ONLY, 7),
    "gradient, first micro-batch": lambda path: train(path, "stop", NAN_GRADIENT_ONLY, 5),
    "gradient, last micro-batch": lambda path: train(path, "stop", NAN_GRADIENT_ONLY, 7),
    "skip": lambda path: train(path, "skip", NAN_LOSS, 5),
    "healthy": lambda path: train(path, "stop", 0, 5),
    "healthy unwatched": lambda path: train(path, None, 0, 5),
    "sharded": lambda path: measure_sharded(path, poisoned=False),
    "sharded and poisoned": lambda path: measure_sharded(path, poisoned=True),
}


def main(output_dir: Path) -> None:
    torch.set_num_threads(1)
    seen = {name: scenario(output_dir / name) for name, scenario in SCENARIOS.items()}
    leave_group(output_dir, seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
