"""A JSON array read element by element: only a window of its text is held."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.blocks import Block, Limits, ParsedBlock, group
from hf_recipes.data.reading.byte_streams import open_utf8
from hf_recipes.data.reading.text_files import jsonl_blocks, parse_json

WINDOW_CHARACTERS = 1 << 20
CUT_TOKEN_CHARACTERS = 16  # where a window's end cuts a number, literal or escape, that shows no further back than this
_MUST_HOLD = "'{}' must hold a JSON array of rows (or one row a line)"
_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def json_blocks(file: Path, limits: Limits) -> Iterator[Block]:
    """An array of rows; a file whose first line is a whole object is read as JSONL.

    Raises:
        UserError: the file is not valid JSON (with row, line and column), or is one object.
    """
    with io.TextIOWrapper(open_utf8(file), "utf-8") as stream:
        window = _Window(file, stream)
        start = window.peek()
        if start == "{" and not isinstance(parse_json(window.first_line()), BadRow):
            yield from jsonl_blocks(file, limits)
        elif start == "[":
            for numbers, values in group(_elements(window), limits):
                yield ParsedBlock(str(file), numbers, values)
        elif start == "{":
            raise UserError(_one_object(file, window))
        elif start:
            value = window.value()
            raise UserError(f"{_MUST_HOLD.format(file)}, not one {type(value).__name__}.")


def _elements(window: _Window) -> Iterator[tuple[int, int, Any]]:
    """The elements of the array at which the window stands, each with its number (from 0) and its size."""
    window.skip("[")
    if window.peek() != "]":
        number = 0
        while True:
            window.row = number
            before = window.offset
            value = window.value()
            yield number, window.offset - before, value
            if window.peek() != ",":
                break
            window.skip(",")
            number += 1
    window.skip("]")
    window.row = None
    if window.peek():
        raise window.problem("Extra data after the array")


def _one_object(file: Path, window: _Window) -> str:
    """What to do with a file that is one object: the rows most likely are a list that one of its keys holds."""
    what = f"{_MUST_HOLD.format(file)}, not one object"
    window.skip("{")
    while window.peek() == '"':
        key = window.value()
        window.skip(":")
        if window.peek() == "[":
            return f"{what}: its key '{key}' holds a list; if those are the rows, write that list alone to a file."
        window.value()
        if window.peek() != ",":
            break
        window.skip(",")
    return f"{what}: put its rows into an array."


class _Window:
    """A stretch of a stream's text with a position in it, filled up as the position moves on."""

    def __init__(self, file: Path, stream: TextIO) -> None:
        self.file = file
        self.row: int | None = None
        self._stream = stream
        self._text = ""
        self._position = 0
        self._ended = False
        self._dropped = 0
        self._dropped_lines = 0
        self._column = 0  # how far into its line the window begins

    @property
    def offset(self) -> int:
        """The position in the whole text, in characters."""
        return self._dropped + self._position

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            self._position = _SPACE.match(self._text, self._position).end()  # type: ignore[union-attr]
            if self._position < len(self._text):
                return self._text[self._position]
            if self._ended:
                return ""
            self._fill()

    def skip(self, wanted: str) -> None:
        """Step over the character `wanted`."""
        found = self.peek()
        if found != wanted:
            raise self.problem(f"Expecting '{wanted}'" if found else f"The file ends where '{wanted}' must stand")
        self._position += 1

    def value(self) -> Any:
        """The JSON value that begins here."""
        if not self.peek():
            raise self.problem("The file ends where a value must stand")
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._position)
            except json.JSONDecodeError as error:
                if self._ended or not self._may_be_cut(error):
                    raise self.problem(error.msg, error.pos) from None
            except (ValueError, RecursionError) as error:
                raise self.problem(str(error)) from None
            else:
                if self._ended or end <= len(self._text) - CUT_TOKEN_CHARACTERS:  # else it may be half a number
                    self._position = end
                    return value
            self._fill()

    def first_line(self) -> str:
        """The rest of the line, as far as a window reaches."""
        if len(self._text) - self._position < WINDOW_CHARACTERS and not self._ended:
            self._fill()
        return self._text[self._position :].split("\n", 1)[0]

    def _may_be_cut(self, error: json.JSONDecodeError) -> bool:
        """Whether more text may mend the fault: it lies at the window's end, or in a string that reaches it."""
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - CUT_TOKEN_CHARACTERS

    def _fill(self) -> None:
        done, rest = self._text[: self._position], self._text[self._position :]
        self._dropped += len(done)
        self._dropped_lines += done.count("\n")
        self._column = len(done) - done.rfind("\n") - 1 if "\n" in done else self._column + len(done)
        more = self._stream.read(max(WINDOW_CHARACTERS, len(rest)))  # doubling keeps a long row's cost linear
        self._ended = not more
        self._text, self._position = rest + more, 0

    def problem(self, message: str, position: int | None = None) -> UserError:
        """The error that names file, row, line and column."""
        position = self._position if position is None else position
        before = self._text[:position]
        line = self._dropped_lines + before.count("\n") + 1
        column = position - before.rfind("\n") if "\n" in before else self._column + position + 1
        row = "" if self.row is None else f"row {self.row}, "
        return UserError(f"'{self.file}' is not valid JSON ({row}line {line}, column {column}): {message}.")
