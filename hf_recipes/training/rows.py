"""The rows of the training set: the samples as they are, or packed, where the model keeps packed samples apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.data.batching.collate import length_grouped_order, padding_share, shuffled_order
from hf_recipes.data.batching.packing import pack, packed_dataset, sample_lengths
from hf_recipes.models.placement import place
from hf_recipes.models.precision import Precision
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.arguments import global_batch_size, order_seed
from hf_recipes.training.isolation import find_isolation

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset
    from transformers import TrainingArguments
    from trl import SFTConfig


_PADDING_WORTH_TELLING = 0.1


@dataclass(frozen=True)
class TrainingRows:
    """What the trainer is given.

    Attributes:
        dataset: rows of samples, or of packed samples.
        longest: tokens of the longest row; for a stream the most there can be.
        packed: rows are packed samples.
        one_row: the collator joins the rows of a batch (see `SupervisedCollator`).
    """

    dataset: Dataset | IterableDataset
    longest: int
    packed: bool = False
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
    unpacked = TrainingRows(dataset, longest_row(dataset, recipe))
    if unpacked.count == 0 or not recipe.get("packing"):
        return unpacked
    place(model, arguments.device)  # attention kernels differ by device
    found = find_isolation(model, dataset[0]["input_ids"], autocast_dtype=precision.autocast_dtype)
    if not found.isolated:
        return unpacked
    if arguments.train_sampling_strategy == "group_by_length":
        logger.info("Packed rows are all nearly full: train_sampling_strategy group_by_length is not needed.")
        arguments.train_sampling_strategy = "random"
    lengths = sample_lengths(dataset)
    bins = pack(lengths, recipe.get("max_length", 1024), arguments.seed)
    logger.info(
        "Packed %d samples into %d rows of at most %d tokens: a row holds %.1f samples.",
        len(dataset),
        len(bins),
        recipe.get("max_length", 1024),
        len(dataset) / len(bins),
    )
    longest = int(np.add.reduceat(lengths[bins.rows], bins.offsets[:-1], dtype=np.int64).max())
    return TrainingRows(packed_dataset(dataset, bins), longest, packed=True, one_row=found.one_row)


def longest_row(dataset: Dataset | IterableDataset, recipe: Recipe) -> int:
    """Tokens of the longest sample; for a stream the most there can be."""
    if hasattr(dataset, "__len__"):
        return int(sample_lengths(dataset).max())
    return int(recipe.get("max_length", 1024))


def epoch_padding(
    lengths: np.ndarray, order: Callable[[np.ndarray, int, int, int], np.ndarray], arguments: TrainingArguments
) -> float:
    """Part of the positions computed in the first epoch that is padding, when rows of `lengths` come in an `order`
    (`shuffled_order`, `length_grouped_order`)."""
    rows = order(lengths, global_batch_size(arguments), order_seed(arguments), 0)
    return padding_share(lengths[rows], arguments.per_device_train_batch_size)


def tell_padding(rows: TrainingRows, arguments: SFTConfig) -> None:
    """Say how much of what is computed is padding, where grouping by length would save a tenth of it or more.

    It is not switched on by itself: what meets in a step is then of one length, and tokens of short samples weigh more.
    The batch sizes in `arguments` must be final.
    """
    if rows.packed or rows.count == 0 or arguments.train_sampling_strategy != "random":
        return
    lengths = sample_lengths(rows.dataset)
    now, grouped = (epoch_padding(lengths, order, arguments) for order in (shuffled_order, length_grouped_order))
    if now - grouped > _PADDING_WORTH_TELLING:
        logger.info(
            "%.0f %% of the tokens computed are padding; train_sampling_strategy: group_by_length makes it %.0f %%.",
            100 * now,
            100 * grouped,
        )
