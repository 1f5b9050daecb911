"""The loss of rows as the run computes it, and, token by token, what else the labels could have been."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.core.plain_head import has_plain_head
from hf_recipes.training.hidden_states import last_hidden_states
from hf_recipes.training.loss import CHUNK_TOKENS, supervised_cross_entropy
from hf_recipes.training.overfit.floor import Row

SHIFTS = (-1, 0, 1)
Collator = Callable[[Sequence[Row]], Mapping[str, Any]]


@dataclass(frozen=True)
class LossOfRows:
    """Computes losses with a model; holds no state of its own.

    Attributes:
        model: a causal language model, wrapped by PEFT or not.
        collator: rows → batch, as the trainer's.
        autocast: opens the precision that the run computes in.
    """

    model: nn.Module
    collator: Collator
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext

    def batch(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """The collated rows on the model's device."""
        device = next(self.model.parameters()).device
        batch = {name: values.to(device) for name, values in self.collator(rows).items() if isinstance(values, Tensor)}
        assert batch["labels"].shape == batch["input_ids"].shape, "labels must stand beside their tokens"
        return batch

    def total(self, rows: Sequence[Row]) -> Tensor:
        """Summed cross-entropy (nats) of the supervised tokens, connected to the model's parameters."""
        batch = self.batch(rows)
        with self.autocast():
            if has_plain_head(self.model):
                head = self.model.get_output_embeddings()  # type: ignore[operator]
                hidden = last_hidden_states(self.model, head, batch)
                return supervised_cross_entropy(hidden, head.weight, head.bias, batch["labels"])
            logits, targets = self._logits(batch)[:, :-1].float(), batch["labels"][:, 1:]
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED_LABEL, reduction="sum"
        )

    @torch.no_grad()
    def by_shift(self, rows: Sequence[Row]) -> Tensor:
        """Mean cross-entropy (nats) of each row when its labels are moved by `SHIFTS` places, ``(rows, shifts)``; NaN
        where a row has no label. At shift 0 it is the row's loss."""
        batch = self.batch(rows)
        targets = torch.stack([_targets(batch["labels"], shift) for shift in SHIFTS], -1)  # (rows, length, shifts)
        wanted = (targets != IGNORED_LABEL).any(-1)
        with self.autocast():
            losses = self._against(batch, wanted, targets[wanted])
        known = targets[wanted] != IGNORED_LABEL
        owner = wanted.nonzero()[:, 0]
        shape = (len(rows), len(SHIFTS))
        total = losses.new_zeros(shape).index_add_(0, owner, losses.masked_fill(~known, 0.0))
        return (total / losses.new_zeros(shape).index_add_(0, owner, known.to(losses.dtype))).cpu()

    def _against(self, batch: dict[str, Tensor], wanted: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropies of each wanted position against each of its targets, in chunks of positions."""
        if has_plain_head(self.model):
            head = self.model.get_output_embeddings()  # type: ignore[operator]
            chosen = last_hidden_states(self.model, head, batch)[wanted]
            chunks = (
                linear(chunk.to(head.weight.dtype), head.weight, head.bias) for chunk in chosen.split(CHUNK_TOKENS)
            )
        else:
            chunks = iter(self._logits(batch)[wanted].split(CHUNK_TOKENS))
        losses = []
        for logits, of_chunk in zip(chunks, targets.split(CHUNK_TOKENS), strict=True):
            wide = logits.float()
            losses.append(wide.logsumexp(-1, keepdim=True) - wide.gather(-1, of_chunk.clamp(min=0)))
        return torch.cat(losses) if losses else targets.float()

    def _logits(self, batch: dict[str, Tensor]) -> Tensor:
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        logits: Tensor = self.model(**inputs, use_cache=False).logits
        return logits


def _targets(labels: Tensor, shift: int) -> Tensor:
    """For each position the label standing ``1 + shift`` places on: what it would have to predict."""
    ahead = 1 + shift
    if ahead == 0:
        return labels
    nothing = labels.new_full((labels.shape[0], ahead), IGNORED_LABEL)
    return torch.cat([labels[:, ahead:], nothing], 1)
