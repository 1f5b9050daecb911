"""Blocks: some rows of a file, not yet parsed, that can be sent to another process and are parsed there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import Place

BLOCK_ROWS = 1024
BLOCK_BYTES = 8 << 20
RowOrFault = Any  # a parsed value, or the BadRow that says why there is none
Item = TypeVar("Item")


class Block(Protocol):
    """Rows that lie together in `file`; picklable, and small enough (`Limits`) for several to be held at once."""

    @property
    def file(self) -> str:
        """The file, or the dataset on the Hub, as the `Place` of every row names it."""

    def rows(self) -> Iterator[tuple[Place, RowOrFault]]:
        """Parse the rows: each a value, or the `BadRow` that says why there is none."""


@dataclass(frozen=True)
class Limits:
    """A block ends with the row that reaches `rows`, or with which its raw size reaches `bytes`."""

    rows: int = BLOCK_ROWS
    bytes: int = BLOCK_BYTES


@dataclass(frozen=True)
class ParsedBlock:
    """Rows that could be told apart only by parsing them: elements of a JSON array, rows of a streamed dataset."""

    file: str
    numbers: Sequence[int]
    values: Sequence[RowOrFault]

    def rows(self) -> Iterator[tuple[Place, RowOrFault]]:
        """The rows, each with the number it has in its file."""
        for number, value in zip(self.numbers, self.values, strict=True):
            yield Place(self.file, number), value


def check_names(file: str, names: Sequence[str]) -> None:
    """Raise `UserError` when a table has two columns of one name, of which a row could keep only one."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"'{file}' has two columns named '{twice}': rename or remove one.")


def group(items: Iterable[tuple[int, int, Item]], limits: Limits) -> Iterator[tuple[list[int], list[Item]]]:
    """Items of (row number, raw size in bytes, content) as the numbers and contents of one block after another."""
    numbers: list[int] = []
    contents: list[Item] = []
    size = 0
    for number, item_size, content in items:
        numbers.append(number)
        contents.append(content)
        size += item_size
        if len(numbers) >= limits.rows or size >= limits.bytes:
            yield numbers, contents
            numbers, contents, size = [], [], 0
    if numbers:
        yield numbers, contents
