"""Which rows are learned by heart, and how much of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.training.overfit.floor import Row

# Long rows are cut after so many trained tokens: to be learned by heart they need not be long.
TRAINED_TOKENS = 32


def draw_rows(dataset: Any, count: int, seed: int) -> list[Any]:
    """`count` rows of a dataset, drawn at random without repetition; of a stream the first ones."""
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        chosen = np.random.default_rng(seed).permutation(len(dataset))[:count]
        return [dataset[int(index)] for index in chosen]
    return list(islice(iter(dataset), count))


def cut_row(row: Row, trained: int = TRAINED_TOKENS) -> Row:
    """The row up to its `trained`-th supervised token. A causal model computes the same for what is left."""
    labels = row["labels"]
    places = [place for place, label in enumerate(labels) if label != IGNORED_LABEL]
    end = places[trained - 1] + 1 if len(places) > trained else len(labels)
    return {"input_ids": row["input_ids"][:end], "labels": labels[:end]}


def shortest_first(rows: Iterable[Row]) -> list[Row]:
    """Rows by length, those without a trained token last: they teach nothing."""
    return sorted(rows, key=lambda row: (trained_tokens(row) == 0, len(row["input_ids"])))


def trained_tokens(row: Row) -> int:
    """How many tokens of a row are predicted and trained (its first one has no prefix)."""
    return sum(label != IGNORED_LABEL for label in row["labels"][1:])


def in_batches(rows: Sequence[Row], size: int) -> list[Sequence[Row]]:
    """Rows, `size` at a time."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
