"""The loader a run begins with: the same samples, sampler, seed, size and collator, without a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import length_grouped_order, shuffled_order
from hf_recipes.data.batching.packing import Bins, packed_dataset, sample_lengths

if TYPE_CHECKING:
    from datasets import Dataset

Collator = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, torch.Tensor]]
# Orders that need no ranks to be drawn.
SAMPLINGS = ("random", "sequential", "group_by_length")


@dataclass(frozen=True)
class LoaderSettings:
    """What decides which samples meet in a batch.

    Args:
        batch_size: rows a device and micro-batch.
        seed: of the order; the Trainer's ``data_seed``, or its ``seed``.
        sampling: the Trainer's ``train_sampling_strategy``.
        drop_last: leave out a short last batch.
        accumulation: micro-batches a device takes before each step.
        ranks: processes among which the batches are dealt in turn.
    """

    batch_size: int = 8
    seed: int = 42
    sampling: str = "random"
    drop_last: bool = False
    accumulation: int = 1
    ranks: int = 1

    @classmethod
    def from_recipe(cls, values: Mapping[str, Any]) -> LoaderSettings:
        """Pick the settings out of a recipe's values, with the Trainer's defaults.

        Raises:
            UserError: the sampling strategy is none that can be shown.
        """
        sampling = values.get("train_sampling_strategy") or cls.sampling
        if sampling not in SAMPLINGS:
            raise UserError(f"train_sampling_strategy '{sampling}' cannot be inspected: {', '.join(SAMPLINGS)} can.")
        seed = values.get("data_seed")
        return cls(
            batch_size=values.get("per_device_train_batch_size") or cls.batch_size,
            seed=values.get("seed", cls.seed) if seed is None else seed,
            sampling=sampling,
            drop_last=bool(values.get("dataloader_drop_last")),
            accumulation=values.get("gradient_accumulation_steps") or 1,
            ranks=values.get("num_processes") or 1,
        )

    def step_and_rank(self, index: int) -> tuple[int, int]:
        """The optimizer step, from 1, and the rank that batch number `index`, from 0, goes to."""
        return index // self.ranks // self.accumulation + 1, index % self.ranks


@dataclass(frozen=True)
class TrainingRows:
    """The rows of an epoch: the samples themselves, or what `packing` makes of them.

    Each row of a batch also says its ``number``, from which `samples_of` tells the samples in it.
    """

    samples: Dataset
    bins: Bins | None = None

    def __post_init__(self) -> None:
        rows = self.samples if self.bins is None else packed_dataset(self.samples, self.bins)
        object.__setattr__(self, "_rows", rows)

    def __len__(self) -> int:
        return len(self.samples) if self.bins is None else len(self.bins)

    def __getitems__(self, numbers: list[int]) -> list[dict[str, Any]]:
        rows = self._rows.__getitems__(numbers)  # type: ignore[attr-defined]
        return [{**row, "number": number} for row, number in zip(rows, numbers, strict=True)]

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.__getitems__([number])[0]

    def samples_of(self, number: int) -> list[int]:
        """The numbers of the samples in a row, in the order in which they lie there."""
        return [number] if self.bins is None else self.bins[number].tolist()

    def lengths(self) -> np.ndarray:
        """Tokens of every row, int64."""
        lengths = sample_lengths(self.samples).astype(np.int64)
        return lengths if self.bins is None else np.add.reduceat(lengths[self.bins.rows], self.bins.offsets[:-1])


def epoch_order(rows: TrainingRows, settings: LoaderSettings) -> np.ndarray:
    """The row numbers of the first epoch in the order in which the run takes them, all ranks' batches in turn.

    The same functions as `training.trainer.SupervisedTrainer` calls; to it packed rows are all of one length.
    """
    if settings.sampling == "sequential":
        return np.arange(len(rows))
    global_batch = settings.batch_size * settings.accumulation * settings.ranks
    if settings.sampling == "group_by_length":
        return length_grouped_order(rows.lengths(), global_batch, settings.seed, epoch=0)
    lengths = rows.lengths() if rows.bins is None else np.ones(len(rows))
    return shuffled_order(lengths, global_batch, settings.seed, epoch=0)


@dataclass(frozen=True)
class _WithRows:
    """A collator that hands on the rows too, so that a batch can say where it came from."""

    collator: Collator

    def __call__(self, rows: list[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], Mapping[str, torch.Tensor]]:
        return rows, self.collator(rows)


def train_loader(rows: TrainingRows, order: np.ndarray, collator: Collator, settings: LoaderSettings) -> DataLoader:
    """A loader of (rows, batch) pairs, `order` from `epoch_order`."""
    return DataLoader(
        rows,  # type: ignore[arg-type]
        batch_size=settings.batch_size,
        sampler=order.tolist(),
        drop_last=settings.drop_last,
        collate_fn=_WithRows(collator),
    )
