"""Batches as people can check them: every sample with its origin, its counts and its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.inspection.loader import LoaderSettings, TrainingRows
from hf_recipes.data.inspection.segments import Segment, segments


@dataclass(frozen=True)
class SampleView:
    """One sample of a batch: its row there (from 1), where it came from, counts in tokens, its text in stretches.

    `padding` are the positions behind it, up to the next sample or the end of the row.
    """

    row: int
    row_id: str
    source: str
    tokens: int
    learned: int
    padding: int
    segments: list[Segment]


@dataclass(frozen=True)
class BatchView:
    """One batch as it enters the model: ``rows × length`` positions, `tokens` of them real, `learned` learned."""

    number: int
    step: int
    rank: int
    rows: int
    length: int
    tokens: int
    learned: int
    padding_share: float
    samples: list[SampleView]


def view_batches(
    loader: DataLoader, rows: TrainingRows, tokenizer: Any, count: int, settings: LoaderSettings
) -> Iterator[BatchView]:
    """The first `count` batches of a `train_loader`, decoded; fewer where an epoch has fewer."""
    origins = rows.samples.select_columns(["row_id", "source"])
    for index, (members, batch) in enumerate(islice(loader, count)):
        ids, labels = (batch[name].numpy() for name in ("input_ids", "labels"))
        samples = [
            sample
            for number, member in enumerate(members)
            for sample in _view_row(
                number, member, ids[number], labels[number], origins[rows.samples_of(member["number"])], tokenizer
            )
        ]
        tokens = sum(sample.tokens for sample in samples)
        step, rank = settings.step_and_rank(index)
        yield BatchView(
            number=index + 1,
            step=step,
            rank=rank,
            rows=ids.shape[0],
            length=ids.shape[1],
            tokens=tokens,
            learned=int((labels != IGNORED_LABEL).sum()),
            padding_share=1 - tokens / ids.size,
            samples=samples,
        )


def _view_row(
    row: int,
    member: Mapping[str, Any],
    ids: np.ndarray,
    labels: np.ndarray,
    origins: Mapping[str, list[str]],
    tokenizer: Any,
) -> Iterator[SampleView]:
    """The samples in a row of a batch. Padding is told by position, as the collator adds it, never by token; where
    samples are packed, each begins at position 0."""
    tokens = len(member["input_ids"])
    positions = np.asarray(member["position_ids"]) if "position_ids" in member else np.arange(tokens)
    starts = np.flatnonzero(positions == 0)
    ends = np.append(starts[1:], tokens)
    for start, end, row_id, source in zip(starts, ends, origins["row_id"], origins["source"], strict=True):
        yield SampleView(
            row=row + 1,
            row_id=row_id,
            source=source,
            tokens=int(end - start),
            learned=int((labels[start:end] != IGNORED_LABEL).sum()),
            padding=len(ids) - tokens if end == tokens else 0,
            segments=segments(ids[start:end].tolist(), labels[start:end].tolist(), tokenizer),
        )
