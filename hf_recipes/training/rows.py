"""The rows of the training set: the samples as they are, or packed, where the model keeps packed samples apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.data.batching.packing import pack, packed_dataset, sample_lengths
from hf_recipes.models.precision import Precision
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.isolation import find_isolation

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from trl import SFTConfig


@dataclass(frozen=True)
class TrainingRows:
    """What the trainer is given. `one_row`: the collator joins the rows of a batch (see `SupervisedCollator`)."""

    dataset: Dataset | IterableDataset
    one_row: bool = False

    @property
    def count(self) -> int:
        """The number of rows; 0 for a stream, whose steps the recipe gives."""
        return len(self.dataset) if hasattr(self.dataset, "__len__") else 0


def check_rows(recipe: Recipe) -> None:
    """Raise `UserError` for keys about rows that contradict each other."""
    if recipe.get("packing") and recipe.values.get("max_length", 1) is None:
        raise UserError("packing: true fills rows up to max_length, which is empty: give max_length a number.")
    if not recipe.get("streaming"):
        return
    if (recipe.get("max_steps") or 0) <= 0:
        raise UserError("streaming: true does not know how many rows there are: give max_steps.")
    for key, is_set in (
        ("packing: true", bool(recipe.get("packing"))),
        ("train_sampling_strategy: group_by_length", recipe.get("train_sampling_strategy") == "group_by_length"),
    ):
        if is_set:
            raise UserError(f"streaming: true and {key} exclude each other (it needs all lengths): remove one.")
    if recipe.get("dataloader_num_workers"):
        raise UserError("streaming: true counts rows in the training process: remove dataloader_num_workers.")


def choose_rows(
    dataset: Dataset | IterableDataset, model: Any, recipe: Recipe, arguments: SFTConfig, precision: Precision
) -> TrainingRows:
    """Pack the samples where the recipe asks for it and the model, tried on one of them, keeps packed samples apart.

    To be called on every rank. Where it does not, samples are padded instead, with a warning.
    """
    if not recipe.get("packing"):
        return TrainingRows(dataset)
    dtype = torch.bfloat16 if precision.bf16 else torch.float16 if precision.fp16 else None
    if not getattr(model, "hf_device_map", None):
        model.to(arguments.device)  # where the trainer moves it anyway; attention kernels differ by device
    found = find_isolation(model, dataset[0]["input_ids"], autocast_dtype=dtype)
    if not found.isolated:
        return TrainingRows(dataset)
    if arguments.train_sampling_strategy == "group_by_length":
        logger.info("Packed rows are all nearly full: train_sampling_strategy group_by_length is not needed.")
        arguments.train_sampling_strategy = "random"
    bins = pack(sample_lengths(dataset), recipe.get("max_length", 1024), arguments.seed)
    logger.info(
        "Packed %d samples into %d rows of at most %d tokens: a row holds %.1f samples.",
        len(dataset),
        len(bins),
        recipe.get("max_length", 1024),
        len(dataset) / len(bins),
    )
    return TrainingRows(packed_dataset(dataset, bins), found.one_row)
