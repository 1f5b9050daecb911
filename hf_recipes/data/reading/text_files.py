"""Text files in blocks of whole lines: JSONL, CSV and TSV, plain text, and files of any kind taken whole.

Rows are read one by one in plain Python, so that one odd row is named and counted instead of failing, or changing the
type of, a whole file.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow, Place
from hf_recipes.data.reading.blocks import Limits, RowOrFault, check_names, group
from hf_recipes.data.reading.byte_streams import encoding_problem, open_utf8, reading

MAX_CSV_FIELD_BYTES = 2**31 - 1
HEADER_BYTES = 1 << 16  # of which the delimiter is told
_DECODER = json.JSONDecoder()
NOT_UTF8 = "not UTF-8"
# Put behind a CSV file: where a quote was never closed, it stands in the cell that took in all the rest.
_END = "\x03\x04 hf_recipes: the file ends here \x04\x03"


@dataclass(frozen=True)
class LinesBlock:
    """Whole lines of a file, `first` being the number of the first (from 1)."""

    file: str
    first: int
    data: bytes

    def lines(self) -> Iterator[tuple[Place, str | BadRow]]:
        """The lines that are not blank, each decoded or named as not UTF-8.

        Raises:
            UserError: so many lines are not UTF-8 that the file as a whole must have another encoding.
        """
        try:
            lines: Sequence[str | BadRow] = self.data.decode().split("\n")
        except UnicodeDecodeError:
            lines = self._decode_singly()
        for number, line in enumerate(lines, self.first):
            if isinstance(line, BadRow) or (line and not line.isspace()):
                yield Place(self.file, number), line

    def _decode_singly(self) -> list[str | BadRow]:
        lines = [_decode(line) for line in self.data.split(b"\n")]
        bad = sum(isinstance(line, BadRow) for line in lines)
        sound = [line for line in lines if isinstance(line, str) and line.strip()]
        beyond_ascii = sum(not line.isascii() for line in sound)
        # One damaged line costs that line; where damage is the rule, the file has another encoding.
        if bad > max(1, beyond_ascii) and bad * 10 > len(sound):
            raise UserError(encoding_problem(Path(self.file)))
        return lines


def _decode(line: bytes) -> str | BadRow:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        return BadRow(NOT_UTF8, f"byte {error.start} of the line is {line[error.start]:#04x}")


class JsonLinesBlock(LinesBlock):
    """Lines that each hold one JSON value."""

    def rows(self) -> Iterator[tuple[Place, RowOrFault]]:
        """Each line parsed, or the `BadRow` that says why it cannot be."""
        for place, line in self.lines():
            yield place, parse_json(line) if isinstance(line, str) else line


class PlainLinesBlock(LinesBlock):
    """Lines that each are the text of one row."""

    def rows(self) -> Iterator[tuple[Place, RowOrFault]]:
        """Each line as ``{"text": line}``."""
        for place, line in self.lines():
            yield place, {"text": line.rstrip("\r")} if isinstance(line, str) else line


def parse_json(line: str) -> RowOrFault:
    """A line's JSON value, or the `BadRow` that says what is wrong with it."""
    try:
        value, end = _DECODER.raw_decode(line)
        if end == len(line):
            return value
    except (ValueError, RecursionError):
        pass  # white space around the value, or a fault, which `json.loads` names
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        return BadRow("not valid JSON", str(error))


def jsonl_blocks(file: Path, limits: Limits) -> Iterator[JsonLinesBlock]:
    """A file of one JSON value a line."""
    for first, data in _whole_lines(file, limits):
        yield JsonLinesBlock(str(file), first, data)


def text_blocks(file: Path, limits: Limits) -> Iterator[PlainLinesBlock]:
    """A file of plain text, one row a line."""
    for first, data in _whole_lines(file, limits):
        yield PlainLinesBlock(str(file), first, data)


def _whole_lines(file: Path, limits: Limits) -> Iterator[tuple[int, bytes]]:
    # Binary iteration splits at \n alone; U+2028 may stand inside JSON strings.
    with open_utf8(file) as stream:
        lines = ((number, len(line), line) for number, line in enumerate(stream, 1))
        for numbers, contents in group(lines, limits):
            data = b"".join(contents)
            if not data.isspace():
                yield numbers[0], data


@dataclass(frozen=True)
class CellsBlock:
    """Records of a CSV file. `lines` are the numbers of the lines they begin at, since a record may span several."""

    file: str
    header: Sequence[str]
    lines: Sequence[int]
    records: Sequence[Sequence[str]]

    def rows(self) -> Iterator[tuple[Place, RowOrFault]]:
        """Each record under the header's names, or the `BadRow` that says why it does not fit them."""
        for line, cells in zip(self.lines, self.records, strict=True):
            yield Place(self.file, line), _csv_row(self.header, cells)


def _csv_row(header: Sequence[str], cells: Sequence[str]) -> RowOrFault:
    if len(cells) != len(header):
        return BadRow("number of cells differs from the header's", f"{len(cells)} against {len(header)}")
    if any("\0" in cell for cell in cells):
        column = next(name for name, cell in zip(header, cells, strict=True) if "\0" in cell)
        return BadRow("a cell holds a NUL byte", f"column '{column}'")
    return dict(zip(header, cells, strict=True))


def csv_blocks(file: Path, limits: Limits) -> Iterator[CellsBlock]:
    """A CSV or TSV file with a header, whose names are separated by comma, tab, semicolon or bar."""
    csv.field_size_limit(MAX_CSV_FIELD_BYTES)
    binary = open_utf8(file)
    delimiter = _delimiter(binary)
    with io.TextIOWrapper(binary, "utf-8", newline="") as stream:
        reader = csv.reader(chain(stream, [_END]), delimiter=delimiter)
        try:
            header = tuple(next((cells for cells in reader if cells), []))
            check_names(str(file), header)
            for lines, records in group(_records(reader), limits):
                yield CellsBlock(str(file), header, lines, records)
        except csv.Error as error:
            raise UserError(f"'{file}', line {reader.line_num}: not valid CSV ({error}).") from None


def _delimiter(stream: IO[bytes]) -> str:
    """What separates a header's names: a tab, a semicolon or a bar where it has no comma."""
    head = stream.peek(HEADER_BYTES)[:HEADER_BYTES].lstrip(b"\r\n")  # type: ignore[attr-defined]
    line = head.split(b"\n")[0].decode(errors="ignore")
    return max("\t;|", key=line.count) if "," not in line and any(sign in line for sign in "\t;|") else ","


def _records(reader) -> Iterator[tuple[int, int, list[str]]]:  # type: ignore[no-untyped-def]  # csv does not name its type
    line = reader.line_num + 1
    for cells in reader:
        if cells == [_END]:
            return
        if cells and _END in cells[-1]:
            raise csv.Error(f"a quote that opens in the record of line {line} is never closed")
        if cells:
            yield line, sum(map(len, cells)), cells
        line = reader.line_num + 1


@dataclass(frozen=True)
class WholeFilesBlock:
    """Files that are one row each, read where `rows` is called."""

    file: str
    files: Sequence[str]

    def rows(self) -> Iterator[tuple[Place, RowOrFault]]:
        """Each file as ``{"text": all of it, "path": its name}``; the row's place is the file's row 1."""
        for file in self.files:
            with reading(Path(file)):
                value = _whole_file(Path(file))
            yield Place(file, 1), value


def _whole_file(file: Path) -> RowOrFault:
    try:
        with open_utf8(file) as stream:
            return {"text": stream.read().decode(), "path": str(file)}
    except (UserError, UnicodeDecodeError) as error:
        return BadRow(NOT_UTF8, str(error))


def whole_file_blocks(files: Iterable[Path], limits: Limits) -> Iterator[WholeFilesBlock]:
    """Files taken whole (code, prose), many small ones to a block."""
    sized = ((1, file.stat().st_size, str(file)) for file in files)
    for _, names in group(sized, limits):
        yield WholeFilesBlock(names[0], names)
