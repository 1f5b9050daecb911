"""Samples → one padded batch, and which samples meet in a batch so that there is little to pad."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Sampler

from hf_recipes.core.labels import IGNORED_LABEL

# Global batches sorted together. More leaves less padding, and makes the same samples meet again every epoch.
_BATCHES_SORTED_TOGETHER = 50


@dataclass(frozen=True)
class SupervisedCollator:
    """Pads samples on the right to the longest of the batch, rounded up to a multiple.

    What is padding follows from its position, never from its token id, so a pad token that equals the end-of-turn token
    costs no label.

    No attention mask is needed: with causal attention a token sees only what stands before it, and on the right padding
    stands behind everything; what is computed at padded positions is ignored through its labels. Without a mask SDPA
    keeps its fast causal path, which a mask makes it leave; and packed samples stay apart only without one.

    Packed rows bring ``position_ids`` (see `hf_recipes.data.batching.packing`). In padding they count on, so that it
    belongs to the last sample: a batch of rows of one sample each then still takes the fast causal path.

    Args:
        pad_token_id: what `input_ids` are filled up with; labels are filled with -100.
        pad_to_multiple_of: the length is rounded up to this (8 suits tensor cores).
        return_attention_mask: also return ``attention_mask`` (1 for tokens, 0 for padding); not for packed rows.
        one_row: put all packed rows of the batch into one, as attention kernels of variable length (flash attention)
            need it; with a dense mask it costs the square of the batch. Samples that are not packed stay in rows of
            their own.
    """

    pad_token_id: int
    pad_to_multiple_of: int = 8
    return_attention_mask: bool = False
    one_row: bool = False

    def __call__(self, features: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """Return ``input_ids``, ``labels`` and, for packed rows, ``position_ids``, int64 of shape (rows, length);
        other columns are left out."""
        packed = "position_ids" in features[0]
        names = ("input_ids", "labels", "position_ids") if packed else ("input_ids", "labels")
        columns = {name: [torch.as_tensor(feature[name]) for feature in features] for name in names}
        if packed and self.one_row:
            columns = {name: [torch.cat(rows)] for name, rows in columns.items()}
        lengths = [len(row) for row in columns["input_ids"]]
        length = -(-max(lengths) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        batch = {
            "input_ids": _padded(columns["input_ids"], length, self.pad_token_id),
            "labels": _padded(columns["labels"], length, IGNORED_LABEL),
        }
        if packed:
            batch["position_ids"] = _counted_on(columns["position_ids"], length)
        if self.return_attention_mask:
            batch["attention_mask"] = (torch.arange(length) < torch.tensor(lengths)[:, None]).long()
        return batch


def _padded(rows: Sequence[torch.Tensor], length: int, value: int) -> torch.Tensor:
    padded = torch.full((len(rows), length), value)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


def _counted_on(rows: Sequence[torch.Tensor], length: int) -> torch.Tensor:
    return torch.stack([torch.cat([row, row[-1] + torch.arange(1, length - len(row) + 1)]) for row in rows])


def shuffled_order(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Shuffle the samples, then let those of one global batch stand from the longest to the shortest.

    What meets in a step is random, and its loss the same whatever the order within; but cut into micro-batches and
    ranks it has less padding. Same arguments and promises as `length_grouped_order`.

    Returns:
        int64 sample numbers, each once.
    """
    lengths = np.asarray(lengths)
    order = np.random.default_rng((seed, epoch)).permutation(len(lengths))
    return order[np.lexsort((-lengths[order].astype(np.int64), np.arange(len(order)) // batch_size))]


def length_grouped_order(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> np.ndarray:
    """Order the samples so that those of one global batch are about equally long, while batches come in random order.

    The samples are shuffled, cut into up to 50 batches at a time, sorted within, and the batches shuffled again. The
    batch with the longest sample comes first, so that memory that does not suffice shows at once; what does not fill
    a batch comes last. Within a batch the longest stands first: however it is shared among micro-batches and ranks,
    those get about equal lengths. Batches depend on nothing but the arguments, so they are the same on every rank, for
    any number of ranks and accumulation steps of the same `batch_size`, and after a resume.

    `transformers`' own order (`LengthGroupedSampler`) draws from the global random state, which dropout moves apart on
    CPU ranks and which a resumed run does not have, and goes from long to short through each 50 batches.

    Args:
        lengths: tokens of each sample.
        batch_size: the global batch: micro-batch × accumulation × ranks.
        seed: with `epoch` decides the order.
        epoch: 0 for the first.

    Returns:
        int64 sample numbers, each once.
    """
    lengths = np.asarray(lengths)
    generator = np.random.default_rng((seed, epoch))
    order = generator.permutation(len(lengths))
    together = batch_size * max(1, min(_BATCHES_SORTED_TOGETHER, len(lengths) // (4 * batch_size)))
    order = order[np.lexsort((-lengths[order].astype(np.int64), np.arange(len(order)) // together))]
    whole = len(order) // batch_size
    if whole == 0:
        return order
    batches = generator.permutation(whole)
    longest = int(np.argmax(lengths[order[batches * batch_size]]))
    batches[[0, longest]] = batches[[longest, 0]]
    shuffled = order[: whole * batch_size].reshape(whole, batch_size)[batches].ravel()
    return np.concatenate([shuffled, order[whole * batch_size :]])


def padding_share(lengths: np.ndarray, batch_size: int, multiple: int = 8) -> float:
    """Part of the computed positions that are padding, when samples of these lengths, in this order, are collated
    `batch_size` at a time."""
    starts = np.arange(0, len(lengths), batch_size)
    longest = -(-np.maximum.reduceat(lengths, starts).astype(np.int64) // multiple) * multiple
    samples = np.diff(np.append(starts, len(lengths)))
    return 1 - int(np.sum(lengths, dtype=np.int64)) / int(longest @ samples)


class EpochSampler(Sampler[int]):
    """Yields the samples in an order that depends on the epoch alone, so a resumed run takes up the same one.

    The epoch is asked for rather than set: through a batch sampler that skips (a resume) and shards (several ranks),
    accelerate's `set_epoch` does not reach the sampler.

    Args:
        order: epoch → sample numbers.
        samples: how many there are.
        epoch_now: the epoch about to begin; with a `Trainer`, ``lambda: int(trainer.state.epoch or 0)``.
    """

    def __init__(self, order: Callable[[int], np.ndarray], samples: int, epoch_now: Callable[[], int]) -> None:
        self._order, self._samples, self._epoch_now = order, samples, epoch_now

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[int]:
        return iter(self._order(self._epoch_now()).tolist())
