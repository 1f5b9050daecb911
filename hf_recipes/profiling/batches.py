"""What is in the batches of the run, counted where they are made, so that padding is never guessed from token ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.profiler import record_function

from hf_recipes.core.flops import Work, causal_pairs
from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.profiling.trace import PREFIX

COUNTS = "hf_recipes_counts"  # travels with the batch, also from a worker's process, until the trainer is given it


@dataclass(frozen=True)
class BatchFacts:
    """One micro-batch: rows, positions computed (padding included), whether it brings an attention mask, whether its
    rows are packed; `counts` is left on its device, so that looking at it while training waits for nothing."""

    rows: int
    positions: int
    masked: bool
    packed: bool
    counts: Tensor

    def work(self) -> Work:
        """The useful work in it."""
        return Work(*self.counts.sum(0).tolist())


class CountingCollator:
    """Collates as `collate` does, and adds to the batch what its rows hold besides padding."""

    def __init__(self, collate: Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]) -> None:
        self.collate = collate

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """The batch with one more int64 tensor (rows, 3): tokens, supervised ones, pairs of positions."""
        with record_function(PREFIX + "collate"):
            batch = dict(self.collate(features))
            supervised = (batch["labels"][:, 1:] != IGNORED_LABEL).sum(1)
            tokens = torch.tensor([len(feature["input_ids"]) for feature in features])
            pairs = torch.tensor([causal_pairs(_sample_lengths(feature)) for feature in features])
            if len(tokens) != len(supervised):  # packed samples laid into one row
                tokens, pairs = tokens.sum(0, keepdim=True), pairs.sum(0, keepdim=True)
            batch[COUNTS] = torch.stack([tokens, supervised, pairs], dim=1)
        return batch


def take_facts(batch: dict[str, Tensor]) -> BatchFacts:
    """Take the counts out of a batch, which is then what the trainer expects."""
    counts = batch.pop(COUNTS)
    rows, length = batch["input_ids"].shape
    return BatchFacts(rows, rows * length, "attention_mask" in batch, "position_ids" in batch, counts)


def total_work(facts: Iterable[BatchFacts]) -> Work:
    """The useful work of several micro-batches."""
    return sum((batch.work() for batch in facts), Work(0, 0, 0))


def _sample_lengths(feature: Mapping[str, Any]) -> list[int]:
    """Lengths of the samples in a row: one, or in a packed row as many as positions that begin at 0 again."""
    length = len(feature["input_ids"])
    positions = feature.get("position_ids")
    if positions is None:
        return [length]
    starts = (torch.as_tensor(positions) == 0).nonzero().flatten().tolist()
    return [end - start for start, end in zip(starts, [*starts[1:], length], strict=True)]
