"""The loss on general text: what a fine-tune forgets shows as its rise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from hf_recipes.core.labels import IGNORED_LABEL

_LOGITS_BYTES = 512 * 2**20  # logits in memory at once: in the model's dtype and again in float32


class TokenisedRow(TypedDict):
    """Token ids and, position by position, the same id where it is to be predicted, -100 elsewhere."""

    input_ids: list[int]
    labels: list[int]


@dataclass(frozen=True)
class TextLoss:
    """Mean negative log-likelihood in nats over `tokens` supervised tokens of `rows` rows."""

    nats_per_token: float
    tokens: int
    rows: int


def mean_loss(model: Any, rows: Sequence[TokenisedRow]) -> TextLoss | None:
    """The mean over all supervised tokens of all rows alike, however rows are batched; None when there is no token.

    Each batch's logits are summed up and let go; batches are cut so that logits take at most half a GiB, one row at
    the least. Rows are filled to the right, where causal attention does not look.

    Args:
        model: a causal LM, in its dtype on its device; the softmax is taken in float32.
        rows: see `TokenisedRow`; as everywhere, the label at position i is predicted from positions before i.
    """
    counts = [supervised_tokens(row["labels"]) for row in rows]
    kept = [row for row, count in zip(rows, counts, strict=True) if count]
    if not kept:
        return None
    vocabulary = model.config.get_text_config().vocab_size
    batches = budget_batches([len(row["input_ids"]) for row in kept], _LOGITS_BYTES // (8 * vocabulary))
    was_training = model.training
    model.eval()
    try:
        total = math.fsum(_summed_loss(model, [kept[index] for index in batch]) for batch in batches)
    finally:
        model.train(was_training)
    return TextLoss(nats_per_token=total / sum(counts), tokens=sum(counts), rows=len(kept))


def supervised_tokens(labels: Sequence[int]) -> int:
    """How many labels are predicted: the first position never is, nothing precedes it."""
    return sum(label != IGNORED_LABEL for label in labels[1:])


def budget_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Indices in batches, longest first, whose rows filled to the longest hold at most `token_budget` tokens.

    A row longer than the budget stands alone.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= token_budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def _summed_loss(model: Any, rows: list[TokenisedRow]) -> float:
    import torch

    length = max(len(row["input_ids"]) for row in rows)

    def filled(values: list[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([value + [filler] * (length - len(value)) for value in values], device=model.device)

    ids = filled([row["input_ids"] for row in rows], 0)
    mask = filled([[1] * len(row["input_ids"]) for row in rows], 0)
    targets = filled([row["labels"] for row in rows], IGNORED_LABEL)[:, 1:]
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logits = logits[:, -length:-1]  # prompt tuning puts its virtual tokens in front
        predicted = targets != IGNORED_LABEL
        losses = torch.nn.functional.cross_entropy(logits[predicted].float(), targets[predicted], reduction="none")
        return losses.double().sum().item()
