"""The losses a traced step may have, with fixed shapes in place of what real labels decide."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """One micro-batch on fake tensors.

    Attributes:
        inputs: what the model is called with, labels not among them.
        labels: (rows, tokens).
        rows, columns: of the supervised positions, which a boolean mask would give.
        targets: labels at these positions.
    """

    inputs: Mapping[str, Tensor]
    labels: Tensor
    rows: Tensor
    columns: Tensor
    targets: Tensor


# (model as the trainer calls it, the same without wrappers, batch, autocast of the trainer) → loss.
StepLoss = Callable[[Any, Any, Batch, Callable[[], AbstractContextManager[Any]]], Tensor]


def full_logits(model: Any, plain: Any, batch: Batch, autocast: Callable[[], AbstractContextManager[Any]]) -> Tensor:
    """transformers' own loss: logits of all positions, brought to fp32."""
    loss: Tensor = model(**batch.inputs, labels=batch.labels, use_cache=False).loss
    return loss


def supervised_only(
    last_hidden_states: Callable[[Any, Any, Mapping[str, Any]], Tensor],
    kernel: Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor],
) -> StepLoss:
    """A loss that computes the head on supervised positions alone, as this package's does.

    Args:
        last_hidden_states: (model, head, inputs) → what the head would be given.
        kernel: (hidden states, head's weight, its bias, labels) → summed loss.
    """

    def loss(model: Any, plain: Any, batch: Batch, autocast: Callable[[], AbstractContextManager[Any]]) -> Tensor:
        head = plain.get_output_embeddings()
        hidden = last_hidden_states(model, head, {**batch.inputs, "labels": batch.labels})
        with autocast():
            supervised = batch.labels[:, 1:] != 0  # the mask that chooses the positions
            chosen = hidden[:, :-1][batch.rows, batch.columns]
            total = kernel(chosen, head.weight, head.bias, batch.targets)
        del supervised
        return total / batch.targets.shape[0]

    return loss
