"""Local files as rows: JSON arrays, JSONL, CSV, Parquet.

Text files are read row by row in plain Python, so that one odd row is named and counted instead of failing, or changing
the type of, a whole file.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow, Place

MAX_CSV_FIELD_BYTES = 2**31 - 1
RowOrFault = Any  # a parsed value, or the BadRow that says why there is none


def read_file(file: Path) -> Iterator[tuple[Place, RowOrFault]]:
    """The rows of a file by its ending (`READERS`), each a parsed value or the `BadRow` that says why there is none.

    Raises:
        UserError: the file is absent, empty, not UTF-8, or as a whole not of its kind.
    """
    empty = True
    try:
        for number, value in READERS[file.suffix.lower()](file):
            empty = False
            yield Place(str(file), number), value
    except UnicodeDecodeError:
        raise UserError(f"'{file}' is not UTF-8 (byte {first_bad_byte(file)}): convert it to UTF-8.") from None
    except OSError as error:
        raise UserError(f"'{file}' cannot be read: {error.strerror or error}.") from None
    if empty:
        raise UserError(f"'{file}' holds no rows.")


def first_bad_byte(file: Path) -> int:
    """Offset (from 0) of the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    with open(file, "rb") as stream:
        while True:
            chunk = stream.read(1 << 20)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                return done - pending + error.start
            done += len(chunk)
            if not chunk:
                return done


def _jsonl(file: Path) -> Iterator[tuple[int, RowOrFault]]:
    with open(file, "rb") as stream:  # binary iteration splits at \n alone; U+2028 may stand inside JSON strings
        for number, raw in enumerate(stream, 1):
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
            if line:
                yield number, _parse(line)


def _parse(line: str) -> RowOrFault:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRow("not valid JSON", str(error))


def _json(file: Path) -> Iterator[tuple[int, RowOrFault]]:
    """An array of objects; a file whose first line is a whole object is read as JSONL."""
    with open(file, encoding="utf-8-sig") as stream:
        first = next((line.strip() for line in stream if line.strip()), "")
    if first.startswith("{") and not isinstance(_parse(first), BadRow):
        yield from _jsonl(file)
        return
    if not first:
        return
    try:
        value = json.loads(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"'{file}' is not valid JSON: {error}.") from None
    if not isinstance(value, list):
        raise UserError(f"'{file}' must hold a JSON array of rows (or one row a line), not one {type(value).__name__}.")
    yield from enumerate(value)


def _csv(file: Path) -> Iterator[tuple[int, RowOrFault]]:
    csv.field_size_limit(MAX_CSV_FIELD_BYTES)
    with open(file, encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
        try:
            header = next(reader, [])
            line = reader.line_num + 1
            for cells in reader:
                if cells:
                    yield line, _csv_row(header, cells)
                line = reader.line_num + 1
        except csv.Error as error:
            raise UserError(f"'{file}', line {reader.line_num}: not valid CSV ({error}).") from None


def _csv_row(header: list[str], cells: list[str]) -> RowOrFault:
    if len(cells) != len(header):
        return BadRow("number of cells differs from the header's", f"{len(cells)} against {len(header)}")
    return dict(zip(header, cells, strict=True))


def _parquet(file: Path) -> Iterator[tuple[int, RowOrFault]]:
    import pyarrow
    import pyarrow.parquet

    try:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                yield number, row
                number += 1
    except pyarrow.ArrowException as error:
        raise UserError(f"'{file}' is not a readable Parquet file: {str(error).splitlines()[0]}.") from None


Reader = Callable[[Path], Iterable[tuple[int, RowOrFault]]]
READERS: dict[str, Reader] = {
    ".json": _json,
    ".jsonl": _jsonl,
    ".ndjson": _jsonl,
    ".csv": _csv,
    ".tsv": _csv,
    ".parquet": _parquet,
}
