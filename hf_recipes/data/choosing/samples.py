"""All encoded samples of all sources under one numbering, with the columns by which some of them are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.store import BlockAccount, BlockStore

if TYPE_CHECKING:
    from datasets import Dataset

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class PreparedSource:
    """A source and the store that its blocks are in. `key` stands for its content and all it was made
    with; `files` names and hashes what was read."""

    spec: SourceSpec
    label: str
    format: str
    key: str
    files: list[dict[str, str]]
    store: BlockStore

    @cached_property
    def account(self) -> BlockAccount:
        """What became of its rows; to be asked when all blocks are done."""
        return self.store.account(self.label)


@dataclass(frozen=True)
class Samples:
    """Samples numbered through, source after source."""

    sources: Sequence[PreparedSource]

    @cached_property
    def starts(self) -> list[int]:
        """The number of each source's first sample; last the number of all samples."""
        counts = [source.account.ledger.samples for source in self.sources]
        return [0, *np.cumsum(counts).tolist()]

    def __len__(self) -> int:
        return self.starts[-1]

    def numbers(self, source: int) -> Array:
        """The sample numbers of one source."""
        return np.arange(self.starts[source], self.starts[source + 1])

    def column(self, name: str) -> Array:
        """A number column of all samples, read from disk at each call."""
        parts = [source.store.column(name) for source in self.sources]
        return np.concatenate(parts) if parts else np.empty(0)

    def source_of(self, numbers: Array) -> Array:
        """The source number of each sample number."""
        return np.searchsorted(self.starts, numbers, side="right") - 1

    @cached_property
    def dataset(self) -> Dataset:
        """The samples themselves, mapped from disk; row n is sample n."""
        from datasets import concatenate_datasets

        parts = [part for source in self.sources if (part := source.store.dataset()) is not None]
        return concatenate_datasets(parts)
