"""The loss on general text: what a fine-tune forgets shows as its rise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.evaluation.likelihood import TokenisedRow, row_nats, supervised_tokens


@dataclass(frozen=True)
class TextLoss:
    """Mean negative log-likelihood in nats over `tokens` supervised tokens of `rows` rows."""

    nats_per_token: float
    tokens: int
    rows: int


def mean_loss(model: Any, rows: Sequence[TokenisedRow]) -> TextLoss | None:
    """The mean over all supervised tokens of all rows alike, however rows are batched; None when there is no token.

    Args:
        model: a causal LM, in its dtype on its device.
        rows: see `TokenisedRow`.
    """
    kept = [row for row in rows if supervised_tokens(row["labels"])]
    return text_loss(row_nats(model, kept), [supervised_tokens(row["labels"]) for row in kept])


def text_loss(nats: Sequence[float], tokens: Sequence[int]) -> TextLoss | None:
    """The mean from each row's sum of nats and its supervised tokens; None without a token."""
    counted = [count for count in tokens if count]
    if not counted:
        return None
    return TextLoss(nats_per_token=math.fsum(nats) / sum(counted), tokens=sum(counted), rows=len(counted))
