"""Which rows a pipeline gets in a step: the global batch shared among the pipelines, in micro-batches of one shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from hf_recipes.core.labels import IGNORED_LABEL

# Rows → ``input_ids`` and ``labels``, padded on the right to one length.
Collate = Callable[[Sequence[Mapping[str, Any]]], dict[str, Tensor]]


@dataclass(frozen=True)
class StepBatch:
    """What one pipeline computes in a step, and the supervised tokens of the whole global batch."""

    tensors: dict[str, Tensor]
    tokens: int


def share_of(numbers: np.ndarray, replica: int, replicas: int) -> np.ndarray:
    """The rows of one pipeline among those of a global batch. They stand from long to short in it, so that neighbours
    have least to pad; a short last batch is shared evenly."""
    return np.array_split(numbers, replicas)[replica]


def make_batch(
    rows: Sequence[Mapping[str, Any]], replica: int, replicas: int, step_rows: int, collate: Collate
) -> StepBatch:
    """The share of one pipeline in a global batch, collated to one shape.

    A schedule takes micro-batches of one shape only, so where rows are missing (the last batch of an epoch) rows
    without labels stand in: they cost time and change nothing.

    Args:
        rows: all of the global batch, with ``input_ids`` and ``labels``; every rank has them, so that the tokens are
            counted without a message.
        replica, replicas: which pipeline, of how many.
        step_rows: rows of one pipeline in a full step.
        collate: see `Collate`.
    """
    mine = [rows[number] for number in share_of(np.arange(len(rows)), replica, replicas)]
    blank = {"input_ids": [0], "labels": [IGNORED_LABEL]}
    tokens = sum(np.count_nonzero(np.asarray(row["labels"][1:]) != IGNORED_LABEL) for row in rows)
    return StepBatch(collate([*mine, *[blank] * (step_rows - len(mine))]), max(1, int(tokens)))


def step_rows_of(order: Callable[[int], np.ndarray], rows: int, global_rows: int, step: int) -> np.ndarray:
    """Row numbers of the global batch of optimizer step `step`, counted from 0; the last one of an epoch may be short.

    Args:
        order: epoch → the numbers of all rows.
        rows: of an epoch.
        global_rows: of a step.
        step: over all epochs.
    """
    epoch, place = divmod(step, -(-rows // global_rows))
    return order(epoch)[place * global_rows : (place + 1) * global_rows]
