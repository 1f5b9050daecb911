"""May samples be packed into one row with this model? Measured on it, before training: the packed loss must be the
separate losses, else samples see each other.

Whether it is, is nobody's promise: it depends on the model's code, the attention implementation, the cache setting,
the shape of the batch and the wrappers around the model. Public reports have trainings that went on with a loss of
37.55 where 44.14 was right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import gather
from hf_recipes.core.wrapped import base_of
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.data.batching.packing import Bins, packed_dataset

TOLERANCE = 1e-3
# Of models that compute in 16 bits, where rows of another length are summed in another order: SmolLM2 in bf16 measures
# 6e-4 to 2e-3, and documents that see each other 0.4.
HALF_TOLERANCE = 1e-2
# A model that hardly minds what it sees (a random one) changes its loss by less than the tolerance though samples see
# each other; so the difference must also be small beside what an outright leak makes.
_SHARE_OF_A_LEAK = 0.1
# Pieces of one text, so that a document seen by another gives it away; rows of unequal length, so that one is padded.
_DOCUMENT_TOKENS = (16, 24, 8, 24, 16)
_BINS = Bins(rows=np.arange(5), offsets=np.array([0, 3, 5]))


@dataclass(frozen=True)
class Isolation:
    """What the probe found. Losses are means per predicted token, in nats.

    Attributes:
        isolated: packing is safe.
        one_row: with all packed rows of a batch in one row, as flash attention needs it (see `SupervisedCollator`).
        backend: the model's class and attention implementation.
        separate: loss of the probe's documents, each in a row of its own.
        packed: the same, packed as the trainer packs them.
        leaking: the same, packed as one text, where each document sees those before it.
        difference: largest of the documents' |packed - separate|, as a part of `separate`.
        tolerance: the most that may be, by the dtype the model computes in.
        failure: why the probe could not be computed, or empty.
    """

    isolated: bool
    one_row: bool
    backend: str
    separate: float = float("nan")
    packed: float = float("nan")
    leaking: float = float("nan")
    difference: float = float("nan")
    tolerance: float = TOLERANCE
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"packing could not be tried on {self.backend}: {self.failure}"
        verdict = "stay apart" if self.isolated else "do not stay apart"
        return (
            f"packed samples {verdict} on {self.backend}: loss {self.packed:.5f} packed, {self.separate:.5f} separate, "
            f"{self.leaking:.5f} as one text (largest difference of a sample {self.difference:.1e}, "
            f"at most {self.tolerance:.0e} and a tenth of a leak's allowed)"
        )


def find_isolation(model: Any, input_ids: Sequence[int], *, autocast_dtype: torch.dtype | None = None) -> Isolation:
    """Find out, and say, whether packed samples stay apart: with rows side by side, else with all rows in one.

    To be called on every rank, for all must agree. A refusal is a warning that names the backend and the numbers.

    Args:
        model: as the trainer gets it, on the device it trains on; its mode is put back.
        input_ids: tokens of a real sample, of which the probe's documents are pieces.
        autocast_dtype: what the trainer autocasts to; None without autocast.
    """
    side_by_side = _agreed(probe_isolation(model, input_ids, one_row=False, autocast_dtype=autocast_dtype))
    if side_by_side.isolated:
        logger.info("Packing: %s.", side_by_side)
        return side_by_side
    joined = _agreed(probe_isolation(model, input_ids, one_row=True, autocast_dtype=autocast_dtype))
    if joined.isolated:
        logger.info("Packing, with the rows of a batch joined into one: %s.", joined)
        return joined
    logger.warning("No packing, samples are padded instead: %s.", side_by_side)
    return side_by_side


def _agreed(found: Isolation) -> Isolation:
    """The same finding on every rank: the first refusal there is."""
    return next((of_rank for of_rank in gather(found) if not of_rank.isolated), found)


def probe_isolation(
    model: Any, input_ids: Sequence[int], *, one_row: bool = False, autocast_dtype: torch.dtype | None = None
) -> Isolation:
    """Compare the losses of five documents packed into two rows with those of the same documents in rows of their own.

    The call is the trainer's: the same collator, no attention mask, ``use_cache=False``; in eval mode, so that dropout
    does not blur it. Packed samples count as isolated when every document's loss differs by at most 1e-3 of the mean
    loss (1e-2 where the model computes in 16 bits), and by at most a tenth of what it differs when documents see each
    other.

    Args and returns: see `find_isolation`; `one_row` is tried as given, on this rank alone.
    """
    backend = f"{type(base_of(model)).__name__}, {_attention(model)} attention"
    documents = Dataset.from_list([_document(input_ids, tokens) for tokens in _DOCUMENT_TOKENS])
    packed = list(packed_dataset(documents, _BINS))
    collator = SupervisedCollator(pad_token_id=int(input_ids[0]), one_row=one_row)
    separate_batch, packed_batch = SupervisedCollator(collator.pad_token_id)(list(documents)), collator(packed)
    leaking_batch = {name: values for name, values in packed_batch.items() if name != "position_ids"}
    try:
        with _as_in_evaluation(model, autocast_dtype):
            separate, together, leaking = (
                _document_losses(model, batch) for batch in (separate_batch, packed_batch, leaking_batch)
            )
    except Exception as error:  # whatever stands in the way of the packed call, it stands in the way of packing
        return Isolation(False, one_row, backend, failure=f"{type(error).__name__}: {error}")
    scale = separate.mean().item()
    difference = (together - separate).abs().max().item() / scale
    leak = (leaking - separate).abs().max().item() / scale
    tolerance = HALF_TOLERANCE if _computes_in_half(model, autocast_dtype) else TOLERANCE
    return Isolation(
        isolated=difference <= tolerance and difference <= _SHARE_OF_A_LEAK * leak,
        one_row=one_row,
        backend=backend,
        separate=scale,
        packed=together.mean().item(),
        leaking=leaking.mean().item(),
        difference=difference,
        tolerance=tolerance,
    )


def _computes_in_half(model: Any, autocast_dtype: torch.dtype | None) -> bool:
    dtypes = (each.dtype for each in model.parameters() if each.is_floating_point())
    return (autocast_dtype or next(dtypes, torch.float32)) in (torch.bfloat16, torch.float16)


def _document(input_ids: Sequence[int], tokens: int) -> dict[str, list[int]]:
    ids = np.resize(np.asarray(input_ids), tokens).tolist()  # repeated where the sample is shorter
    return {"input_ids": ids, "labels": ids}


@torch.no_grad()
def _document_losses(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean loss of each of the probe's documents, float32 on the CPU, in the order of `_DOCUMENT_TOKENS`."""
    device = next(model.parameters()).device
    inputs = {name: values.to(device) for name, values in batch.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits[:, :-1].float()
    labels = batch["labels"].to(device)[:, 1:]
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="none")
    predicted = losses[labels.flatten() != IGNORED_LABEL].cpu()
    return torch.stack([part.mean() for part in predicted.split([tokens - 1 for tokens in _DOCUMENT_TOKENS])])


@contextmanager
def _as_in_evaluation(model: Any, autocast_dtype: torch.dtype | None) -> Iterator[None]:
    training = {module: module.training for module in model.modules()}
    model.eval()
    device = next(model.parameters()).device.type
    try:
        with torch.autocast(device, dtype=autocast_dtype, enabled=autocast_dtype is not None):
            yield
    finally:
        for module, mode in training.items():
            module.training = mode


def _attention(model: Any) -> str:
    return str(getattr(base_of(model).config, "_attn_implementation", None) or "unknown")
