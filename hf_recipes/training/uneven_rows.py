"""Rows that do not divide by the ranks: what several processes then do otherwise than one, told before training."""

from __future__ import annotations

from typing import Any

from datasets import Dataset

from hf_recipes.core.data_parallel import data_parallel_ranks
from hf_recipes.core.log import logger


def repeated_rows(rows: int, micro_batch: int, ranks: int) -> int:
    """Rows of the start of an epoch that are met once more at its end, so that all ranks have as many full batches
    (accelerate 1.15, `BatchSamplerShard` with ``even_batches``).

    Args:
        rows: of the data.
        micro_batch: rows a rank computes at once.
        ranks: that see rows of their own; one takes a smaller batch, and repeats nothing.
    """
    return -rows % (micro_batch * ranks) if ranks > 1 else 0


def tell_repeated_rows(trainer: Any) -> None:
    """Say how many rows count twice, in training and in evaluation, where some do."""
    arguments = trainer.args
    ranks, even = data_parallel_ranks(arguments), arguments.accelerator_config.even_batches
    if ranks == 1 or not even:  # uneven batches are told of by `set_parallel_defaults`
        return
    rows = trainer.train_dataset
    if isinstance(rows, Dataset) and not arguments.dataloader_drop_last:
        micro = arguments.per_device_train_batch_size
        if again := repeated_rows(len(rows), micro, ranks):
            logger.info(
                "%d rows do not divide by %d ranks × %d: %d of the start of each epoch are met again in its last step, "
                "where one process would take a smaller step.",
                len(rows),
                ranks,
                micro,
                again,
            )
    parts = trainer.eval_dataset if isinstance(trainer.eval_dataset, dict) else {"": trainer.eval_dataset}
    micro = arguments.per_device_eval_batch_size
    again = sum(repeated_rows(len(part), micro, ranks) for part in parts.values() if isinstance(part, Dataset))
    if again and arguments.eval_strategy != "no":
        logger.info(
            "The evaluation's last batch is filled with %d rows of its start: its loss differs a little from that of "
            "one process.",
            again,
        )
