"""Encoded blocks on disk: one Arrow file and one account each, so that a preparation can stop and go on, be shared out
over processes and machines, and be read again without being held in memory.

A block is done when its account, written last, is there and the samples have its checksum. Blocks are written
beside their place and renamed, so several processes may work in one store at once; whoever encodes a block a second
time writes the same bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hf_recipes.core.files import read_json, staged_beside, write_json
from hf_recipes.data.ledger import Ledger

if TYPE_CHECKING:
    from datasets import Dataset

SAMPLE_COLUMNS = ("input_ids", "labels", "length", "source", "row_id")
BANDS = "bands"
_READ_BYTES = 8 << 20
SCHEMA = pa.schema(
    [
        ("input_ids", pa.list_(pa.int32())),
        ("labels", pa.list_(pa.int32())),
        ("source", pa.string()),
        ("row_id", pa.string()),
        # For choosing among the samples without reading them:
        ("length", pa.int32()),
        ("supervised_tokens", pa.int32()),
        ("row_tokens", pa.int32()),  # of the whole row, before it was fitted to max_length
        ("part", pa.int32()),  # 0, 1, … for the samples that one row was split into
        ("key", pa.uint64()),  # equal for rows of equal text
        ("prompt_key", pa.uint64()),  # … of equal text before the last answer
        ("answer_key", pa.uint64()),  # … of equal answers
        ("group", pa.uint64()),  # … of equal group_by value; else the row's key
        ("stratum", pa.uint64()),  # … of equal stratify_by value; else 0
        ("balance", pa.uint64()),  # … of equal balance_by value; else 0
        (BANDS, pa.list_(pa.uint64())),  # MinHash bands, for near duplicates
    ]
)


@dataclass(frozen=True)
class BlockAccount:
    """What became of a block's rows. `lengths` is (number, sum of tokens) of all rows that could be encoded, those too
    long included; `values` names the hashed values of ``stratify_by`` and ``balance_by``."""

    ledger: Ledger
    lengths: tuple[int, int] = (0, 0)
    values: dict[int, str] | None = None


class BlockStore:
    """The encoded blocks of one source, numbered as the source yields them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def is_done(self, number: int) -> bool:
        """Whether the block was encoded and written whole, and its samples are still those bytes."""
        try:
            return bool(read_json(self._account(number))["crc32"] == _crc32(self._samples(number)))
        except (OSError, ValueError, KeyError, TypeError):  # absent, or cut short: then it is made again
            return False

    def write(self, number: int, batches: Iterable[pa.RecordBatch], account: BlockAccount) -> None:
        """Write a block: its samples, then its account."""
        self.directory.mkdir(parents=True, exist_ok=True)
        staged = staged_beside(self._samples(number))
        try:
            with pa.OSFile(str(staged), "wb") as file, pa.ipc.new_stream(file, SCHEMA) as writer:
                for batch in batches:
                    writer.write_batch(batch)
            staged.replace(self._samples(number))
        finally:
            staged.unlink(missing_ok=True)
        write_json(
            self._account(number),
            {
                "crc32": _crc32(self._samples(number)),
                "ledger": account.ledger.as_dict(),
                "lengths": list(account.lengths),
                "values": {str(code): name for code, name in (account.values or {}).items()},
            },
        )

    def finish(self, blocks: int) -> None:
        """Note how many blocks the source has: with all of them done, the store is whole."""
        write_json(self.directory / "blocks.json", {"blocks": blocks})

    def blocks(self) -> int | None:
        """The number of blocks of the source, once it was read to its end; None before."""
        try:
            return int(read_json(self.directory / "blocks.json")["blocks"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def is_whole(self) -> bool:
        """Whether every block of the source is done."""
        count = self.blocks()
        if count is None or self._account(count).exists():
            return False
        return all(self.is_done(number) for number in range(count))

    def account(self, source: str) -> BlockAccount:
        """The sum of all blocks' accounts."""
        ledger, rows, tokens = Ledger(source), 0, 0
        values: dict[int, str] = {}
        for number in range(self.blocks() or 0):
            saved = read_json(self._account(number))
            ledger.merge(Ledger.from_dict(source, saved["ledger"]))
            rows, tokens = rows + saved["lengths"][0], tokens + saved["lengths"][1]
            values.update({int(code): name for code, name in saved["values"].items()})
        return BlockAccount(ledger, (rows, tokens), values)

    def column(self, name: str) -> np.ndarray[Any, Any]:
        """One of the number columns over all blocks, the only one read from disk."""
        parts = [table.column(name).to_numpy() for table in self._tables()]
        return np.concatenate(parts) if parts else np.empty(0, SCHEMA.field(name).type.to_pandas_dtype())

    def bands(self) -> Iterator[np.ndarray[Any, Any]]:
        """The MinHash bands, block by block, each uint64 of shape (samples, bands)."""
        for table in self._tables():
            if len(table):
                lists = table.column(BANDS).combine_chunks()
                yield lists.flatten().to_numpy().reshape(len(lists), -1)

    def dataset(self) -> Dataset | None:
        """All samples, mapped from disk, with the columns `SAMPLE_COLUMNS`; None when there are none."""
        from datasets import Dataset, concatenate_datasets

        parts = [Dataset.from_file(str(self._samples(number))) for number in range(self.blocks() or 0)]
        parts = [part.select_columns(list(SAMPLE_COLUMNS)) for part in parts if len(part)]
        return concatenate_datasets(parts) if parts else None

    def _tables(self) -> Iterator[pa.Table]:
        for number in range(self.blocks() or 0):
            with pa.memory_map(str(self._samples(number))) as file:
                yield pa.ipc.open_stream(file).read_all()

    def _samples(self, number: int) -> Path:
        return self.directory / f"{number:06d}.arrow"

    def _account(self, number: int) -> Path:
        return self.directory / f"{number:06d}.json"


def _crc32(file: Path) -> int:
    """The checksum of a file's bytes: fast, and enough against accidents."""
    value = 0
    with open(file, "rb") as stream:
        while data := stream.read(_READ_BYTES):
            value = zlib.crc32(data, value)
    return value
