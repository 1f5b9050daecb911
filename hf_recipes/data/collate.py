"""Samples → one padded batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hf_recipes.data.masks import IGNORED


@dataclass(frozen=True)
class SupervisedCollator:
    """Pads samples on the right to the longest of the batch, rounded up to a multiple.

    What is padding follows from its position, never from its token id, so a pad token that equals the end-of-turn token
    costs no label.

    No attention mask is needed: with causal attention a token sees only what stands before it, and on the right padding
    stands behind everything; what is computed at padded positions is ignored through its labels. Without a mask SDPA
    keeps its fast causal path, which a mask makes it leave.

    Args:
        pad_token_id: what `input_ids` are filled up with; labels are filled with -100.
        pad_to_multiple_of: the length is rounded up to this (8 suits tensor cores).
        return_attention_mask: also return ``attention_mask`` (1 for tokens, 0 for padding).
    """

    pad_token_id: int
    pad_to_multiple_of: int = 8
    return_attention_mask: bool = False

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return ``input_ids`` and ``labels``, int64 of shape (samples, length); other columns are left out."""
        lengths = [len(feature["input_ids"]) for feature in features]
        length = -(-max(lengths) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        input_ids = torch.full((len(features), length), self.pad_token_id)
        labels = torch.full((len(features), length), IGNORED)
        for row, (feature, count) in enumerate(zip(features, lengths, strict=True)):
            input_ids[row, :count] = torch.as_tensor(feature["input_ids"])
            labels[row, :count] = torch.as_tensor(feature["labels"])
        batch = {"input_ids": input_ids, "labels": labels}
        if self.return_attention_mask:
            batch["attention_mask"] = (torch.arange(length) < torch.tensor(lengths)[:, None]).long()
        return batch
