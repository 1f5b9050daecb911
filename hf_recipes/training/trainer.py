"""The one trainer subclass: TRL's `SFTTrainer` with a loss that computes the head on supervised positions only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers.trainer_utils import has_length
from trl import SFTTrainer

from hf_recipes.callbacks.gradients import see_loss
from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.core.plain_head import has_plain_head
from hf_recipes.data.batching.collate import EpochSampler, length_grouped_order, shuffled_order
from hf_recipes.data.batching.packing import sample_lengths
from hf_recipes.training.arguments import global_batch_size, order_seed
from hf_recipes.training.hidden_states import last_hidden_states
from hf_recipes.training.loss import Kernel, chunked_cross_entropy, supervised_cross_entropy


class SupervisedTrainer(SFTTrainer):
    """`SFTTrainer` with a loss of its own, and batches that are the same on any number of ranks and after a resume.

    Same loss value as TRL's (a test holds it); on a LoRA step the head is neither recomputed in the backward pass nor
    given a weight gradient, and no entropy or accuracy is computed over the vocabulary.

    Attributes:
        loss_kernel: what computes head and loss (see `choose_kernel`).
    """

    loss_kernel: Kernel = staticmethod(chunked_cross_entropy)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Mean cross-entropy per supervised token of the whole accumulated batch, over all ranks."""
        unwrapped = self.accelerator.unwrap_model(model)
        if return_outputs or not has_plain_head(unwrapped) or self.aux_loss_enabled:
            inputs = {**_positions(inputs), **inputs}
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        head, labels = unwrapped.get_output_embeddings(), inputs["labels"]
        hidden = last_hidden_states(model, head, inputs)
        # The wrapper hands hidden states out in fp32, outside of autocast; the head computes as it would inside.
        with self.accelerator.autocast():
            total = supervised_cross_entropy(hidden, head.weight, head.bias, labels, self.loss_kernel)
        if num_items_in_batch is None:
            loss = total / (labels[:, 1:] != IGNORED_LABEL).sum().clamp(min=1)
            see_loss(unwrapped, loss, labels, weighted=False)
            return loss
        loss = total / num_items_in_batch
        see_loss(unwrapped, loss, labels, weighted=True)
        # The count is over all ranks and accumulated batches, while DDP averages gradients over ranks.
        return loss * (self.accelerator.num_processes if self.args.average_tokens_across_devices else 1)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: `SFTTrainer` writes one at each save, before there is a result; `finish` writes ours, of the run."""

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        """Orders of our own for ``random`` and ``group_by_length``: `Trainer`'s are drawn from the global random state,
        which dropout moves apart on CPU ranks and a resumed run does not have, and meet other samples in a step when
        accumulation or ranks change. (`SFTTrainer` takes no sampler, so a method is overridden.)"""
        order = _ORDERS.get(str(self.args.train_sampling_strategy))
        lengths = _row_lengths(self.train_dataset)
        if order is None or lengths is None:
            return super()._get_train_sampler(train_dataset)
        return EpochSampler(
            lambda epoch: order(lengths, global_batch_size(self.args), order_seed(self.args), epoch),
            len(lengths),
            lambda: int(self.state.epoch or 0),
        )


_ORDERS = {"random": shuffled_order, "group_by_length": length_grouped_order}


def _row_lengths(dataset: Any) -> np.ndarray | None:
    """Tokens of each row, one for all where rows are packed; None for a stream."""
    if not has_length(dataset):
        return None
    if isinstance(dataset, Dataset) and {"length", "input_ids"} & set(dataset.column_names):
        return sample_lengths(dataset)
    return np.ones(len(dataset), dtype=np.int32)


def _positions(inputs: Mapping[str, Any]) -> dict[str, Tensor]:
    """Positions of right-padded rows: TRL's loss wants them, or a mask, for models with soft-capped logits."""
    rows, length = inputs["input_ids"].shape
    return {"position_ids": torch.arange(length, device=inputs["input_ids"].device).expand(rows, length)}
