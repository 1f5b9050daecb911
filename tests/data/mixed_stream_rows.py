"""Streams of numbered rows, for the tests of mixed streams and the processes they start."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from datasets import IterableDataset

from hf_recipes.data.mixing.mix import mix_datasets

GENERAL = 1_000_000  # the number of the first general row
DOMAIN_ROWS = 160
EPOCH_ROWS = 188  # 160 domain rows at 0.15 call for 160 · 0.15 / 0.85 = 28.2 general ones


def numbered(start: int) -> IterableDataset:
    """A stream without an end."""
    return IterableDataset.from_generator(_count, gen_kwargs={"start": start})


def _count(start: int) -> Iterator[dict[str, Any]]:
    for number in itertools.count(start):
        yield {"input_ids": [number] * (1 + number * 7 % 13)}


def sharded(count: int, shards: int) -> IterableDataset:
    """`shards` shards of `count` rows, numbered on."""
    starts = [count * shard for shard in range(shards)]
    return IterableDataset.from_generator(_shards, gen_kwargs={"starts": starts, "n": count})


def _shards(starts: list[int], n: int) -> Iterator[dict[str, Any]]:
    for start in starts:
        for number in range(start, start + n):
            yield {"input_ids": [number] * (1 + number % 5)}


def mixture(domain: IterableDataset | None = None, **settings: Any) -> Any:
    """160 domain rows in four shards, and general ones without an end."""
    settings = {"general_share": 0.15, "seed": 3, "buffer_size": 20, **settings}
    return mix_datasets({"orders": domain or sharded(40, 4), "general": numbered(GENERAL)}, **settings)


def first_ids(rows: Any) -> list[int]:
    """The numbers of the rows."""
    return [row["input_ids"][0] for row in rows]
