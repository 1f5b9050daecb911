"""Parquet, Arrow and Feather files in blocks of record batches; a file is never held whole.

Arrow files are read, not mapped: mapped pages would count as the process's memory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, first_line
from hf_recipes.data.ledger import Place
from hf_recipes.data.reading.blocks import Limits, RowOrFault, check_names
from hf_recipes.data.reading.byte_streams import READ_BYTES


@dataclass(frozen=True)
class ArrowBlock:
    """Rows of one `pyarrow.RecordBatch`, the first being number `first` (from 0) of its file."""

    file: str
    first: int
    batch: Any

    def rows(self) -> Iterator[tuple[Place, RowOrFault]]:
        """Each row as a dict."""
        names = self.batch.schema.names
        try:
            columns = [_values(column) for column in self.batch.columns]
        except (ValueError, OSError, OverflowError, MemoryError, IndexError):  # offsets or text that cannot be
            raise UserError(
                f"'{self.file}' is damaged from row {self.first} on: get or write the file again."
            ) from None
        cells = zip(*columns, strict=True)
        for number, row in enumerate(cells, self.first):
            yield Place(self.file, number), dict(zip(names, row, strict=True))

    def __getstate__(self) -> tuple[str, int, bytes]:
        # Pickling a batch would send all that it is a slice of; the stream format sends the slice.
        import pyarrow

        sink = pyarrow.BufferOutputStream()
        with pyarrow.ipc.new_stream(sink, self.batch.schema) as writer:
            writer.write_batch(self.batch)
        return self.file, self.first, sink.getvalue().to_pybytes()

    def __setstate__(self, state: tuple[str, int, bytes]) -> None:
        import pyarrow

        file, first, data = state
        with pyarrow.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
        for name, value in (("file", file), ("first", first), ("batch", batch)):
            object.__setattr__(self, name, value)


def _values(array: Any) -> list[Any]:
    """An Arrow array as Python values.

    A column of structs gives every row every field that any row has; fields that are null are left out again, as they
    were when the rows were written. Columns of JSON (`datasets.Json`, for fields of mixed types) are parsed.
    """
    import pyarrow
    from pyarrow import types

    kind = array.type
    if isinstance(kind, pyarrow.JsonType):
        return [None if text is None else json.loads(text) for text in array.storage.to_pylist()]
    if types.is_dictionary(kind):
        return _values(array.dictionary_decode())
    if types.is_struct(kind):
        return _structs(array)
    if types.is_list(kind) or types.is_large_list(kind):
        return _lists(array)
    return array.to_pylist()


def _structs(array: Any) -> list[dict[str, Any] | None]:
    names = [field.name for field in array.type]
    cells = zip(*(_values(array.field(index)) for index in range(len(names))), strict=True) if names else ()
    rows: list[dict[str, Any] | None] = [
        {name: value for name, value in zip(names, row, strict=True) if value is not None} for row in cells
    ] or [{} for _ in range(len(array))]
    return _with_nulls(rows, array)


def _lists(array: Any) -> list[list[Any] | None]:
    if not len(array):
        return []
    bounds = array.offsets.to_pylist()
    begin = bounds[0]
    values = _values(array.values.slice(begin, bounds[-1] - begin))
    rows: list[list[Any] | None] = [values[start - begin : end - begin] for start, end in pairwise(bounds)]
    return _with_nulls(rows, array)


def _with_nulls(rows: list[Any], array: Any) -> list[Any]:
    if not array.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, array.is_valid().to_pylist(), strict=True)]


def without_nulls(value: Any) -> Any:
    """A value without the null fields of the objects in it, for rows that others have made of Arrow data."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


def parquet_blocks(file: Path, limits: Limits) -> Iterator[ArrowBlock]:
    """A Parquet file."""
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=READ_BYTES) as parquet:
            yield from batch_blocks(str(file), parquet.iter_batches(batch_size=limits.rows, use_threads=False), limits)
    except pyarrow.ArrowException as error:
        raise UserError(f"'{file}' is not a readable Parquet file: {first_line(error)}.") from None


def arrow_blocks(file: Path, limits: Limits) -> Iterator[ArrowBlock]:
    """An Arrow file of either kind (with an index at its end, or a stream), which includes Feather."""
    import pyarrow

    try:
        with pyarrow.OSFile(str(file)) as source:
            indexed = source.read(6) == b"ARROW1"
            source.seek(0)
            yield from batch_blocks(str(file), _batches(source, indexed), limits)
    except pyarrow.ArrowException as error:
        raise UserError(f"'{file}' is not a readable Arrow file: {first_line(error)}.") from None


def _batches(source: Any, indexed: bool) -> Iterator[Any]:
    import pyarrow

    if not indexed:
        yield from pyarrow.ipc.open_stream(source)
        return
    reader = pyarrow.ipc.open_file(source)
    for index in range(reader.num_record_batches):
        yield reader.get_batch(index)


def batch_blocks(file: str, batches: Iterator[Any], limits: Limits, first: int = 0) -> Iterator[ArrowBlock]:
    """Record batches cut down to the limits."""
    for batch in batches:
        check_names(file, batch.schema.names)
        rows = max(1, min(limits.rows, batch.num_rows * limits.bytes // max(1, batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            piece = batch.slice(start, rows)
            yield ArrowBlock(file, first + start, piece)
        first += batch.num_rows
