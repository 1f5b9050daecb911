"""How much of the eval set stands in the training set too. Pure, on arrays of one entry a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Overlap:
    """Eval samples that meet their like in training: their number, and (eval, train) sample numbers of the first."""

    count: int
    pairs: list[tuple[int, int]]


def overlap(codes: Array, train: Array, held_out: Array, but: Array | None = None, pairs: int = 3) -> Overlap:
    """Eval samples whose code some training sample has.

    Args:
        codes: a code for every sample, equal where samples are alike.
        train: sample numbers of the training set.
        held_out: sample numbers of the eval set.
        but: codes of a stricter likeness; eval samples that are alike by these are not counted here.
        pairs: how many pairs to name.
    """
    hit = np.isin(codes[held_out], codes[train])
    if but is not None:
        hit &= ~np.isin(but[held_out], but[train])
    found = held_out[hit]
    named = [(int(number), int(train[np.argmax(codes[train] == codes[number])])) for number in found[:pairs]]
    return Overlap(int(hit.sum()), named)
