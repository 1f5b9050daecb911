"""Local files as rows, in blocks of a bounded size: JSON, JSONL, CSV, TSV, plain text, Parquet, Arrow and Feather."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import Place
from hf_recipes.data.reading.blocks import Block, Limits, RowOrFault
from hf_recipes.data.reading.byte_streams import PACKED, reading
from hf_recipes.data.reading.columnar_files import arrow_blocks, parquet_blocks
from hf_recipes.data.reading.json_arrays import json_blocks
from hf_recipes.data.reading.text_files import csv_blocks, jsonl_blocks, text_blocks

Reader = Callable[[Path, Limits], Iterable[Block]]
TEXT_READERS: dict[str, Reader] = {
    ".json": json_blocks,
    ".jsonl": jsonl_blocks,
    ".ndjson": jsonl_blocks,
    ".csv": csv_blocks,
    ".tsv": csv_blocks,
    ".txt": text_blocks,
}
PLAIN_TEXT = (".txt", *(".txt" + packed for packed in PACKED))
READERS: dict[str, Reader] = {
    **TEXT_READERS,
    ".parquet": parquet_blocks,
    ".arrow": arrow_blocks,
    ".feather": arrow_blocks,
    **{name + packed: reader for name, reader in TEXT_READERS.items() for packed in PACKED},
}


def ending(file: Path) -> str:
    """The end of a file's name by which its reader is found, in small letters: ``.parquet``, ``.jsonl.gz``."""
    last = file.suffix.lower()
    return Path(file.stem).suffix.lower() + last if last in PACKED else last


def read_blocks(file: Path, limits: Limits = Limits()) -> Iterator[Block]:  # noqa: B008 (frozen)
    """The rows of a file by its ending (`READERS`), in blocks; no more than a block or two is held.

    Raises:
        UserError: the file is absent, empty, of another encoding, cut short, or as a whole not of its kind. Parsing a
            block's rows may raise it too.
    """
    empty = True
    with reading(file):
        for block in READERS[ending(file)](file, limits):
            empty = False
            yield block
    if empty:
        raise UserError(f"'{file}' holds no rows.")


def read_file(file: Path) -> Iterator[tuple[Place, RowOrFault]]:
    """The rows of a file, each a parsed value or the `BadRow` that says why there is none; raises as `read_blocks`."""
    for block in read_blocks(file):
        yield from block.rows()
