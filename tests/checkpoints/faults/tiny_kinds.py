"""The kinds of runs whose checkpoints are put to the trial, all so small that a whole run takes a second."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from checkpoint_helpers import LossRecorder, lora_config, make_trainer, tiny_llama
from faults.children import start_ranks, wait
from transformers import TrainerCallback

from hf_recipes.checkpoints.choose import resolve_resume
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.core.ranks import from_main


@dataclass(frozen=True)
class Kind:
    """What is trained, and on how many ranks. `shard` is transformers' `max_shard_size`."""

    name: str
    adapter: bool = False
    dora: bool = False
    tied: bool = True
    bf16: bool = False
    shard: str | None = None
    ranks: int = 1


FULL = Kind("full")
LORA = Kind("LoRA", adapter=True)
SHARDED = Kind("sharded", tied=False, shard="60KB")
TWO_RANKS = Kind("2 ranks", ranks=2)
LORA_TWO_RANKS = Kind("LoRA, 2 ranks", adapter=True, ranks=2)
KINDS = (
    FULL,
    LORA,
    SHARDED,
    TWO_RANKS,
    Kind("untied", tied=False),
    Kind("DoRA", adapter=True, dora=True),
    Kind("bf16", bf16=True),
    LORA_TWO_RANKS,
)


@dataclass(frozen=True)
class Place:
    """Where one run leaves what it makes: its checkpoints, every loss it met, and what it said."""

    directory: Path

    @property
    def output(self) -> Path:
        return self.directory / "run"

    @property
    def losses(self) -> Path:
        return self.directory / "losses.jsonl"

    @property
    def log(self) -> Path:
        return self.directory / "log.txt"

    def said(self) -> str:
        """The last of what the run said."""
        return self.log.read_text()[-600:].replace("\n", " / ") if self.log.exists() else ""


def train(
    kind: Kind,
    place: Place,
    *,
    steps: int,
    resume: bool = False,
    limit: int | None = None,
    before: Sequence[TrainerCallback] = (),
    **arguments: object,
) -> None:
    """Train to the end in this process (one rank of the run), saving at every step; `before` stand before the keeper.

    Raises:
        RuntimeError: the keeper found a checkpoint that is not good.
    """
    logging.basicConfig(level=logging.WARNING)
    first = os.environ.get("RANK", "0") == "0"
    keeper = CheckpointKeeper(save_total_limit=limit)
    callbacks = [*([LossRecorder(place.losses)] if first else []), *before, keeper]
    model = tiny_llama(tie_word_embeddings=kind.tied)
    if kind.bf16:
        model = model.to(torch.bfloat16)
    if kind.shard:
        model.save_pretrained = functools.partial(model.save_pretrained, max_shard_size=kind.shard)
    adapter = lora_config(use_dora=kind.dora) if kind.adapter else None
    trainer = make_trainer(place.output, callbacks, lora=adapter, model=model, max_steps=steps, **arguments)
    assert trainer.args.world_size == kind.ranks
    checkpoint = from_main(lambda: resolve_resume("last" if resume else None, place.output))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if kind.ranks > 1:
        torch.distributed.destroy_process_group()
    if keeper.failed:
        raise RuntimeError(keeper.failed)


def start_run(kind: Kind, place: Place, **options: object) -> list[int]:
    """Start `train` in children, one a rank; their process ids."""
    place.directory.mkdir(parents=True, exist_ok=True)
    return start_ranks(lambda: train(kind, place, **options), place.log, kind.ranks)  # type: ignore[arg-type]


def run(kind: Kind, place: Place, **options: object) -> list[int]:
    """Run `train` in children to whatever end; their exit codes."""
    return wait(start_run(kind, place, **options))


@functools.cache
def unbroken(kind: Kind, work: Path, steps: int) -> Place:
    """A run that nothing disturbed, with all its checkpoints; made once for each kind and number of steps."""
    place = Place(work / f"unbroken-{kind.name.replace(' ', '-')}-{steps}")
    codes = run(kind, place, steps=steps)
    assert codes == [0] * kind.ranks, place.said()
    return place


def losses_of(place: Place) -> list[tuple[int, float]]:
    """(step, loss) of every step of every attempt, in the order they were met."""
    lines = place.losses.read_text().splitlines() if place.losses.exists() else []
    return [(line["step"], line["loss"]) for line in map(json.loads, lines)]
