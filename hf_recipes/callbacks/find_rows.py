"""Which rows of a data set the rows of a batch are, found by their tokens: batches carry no ids."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hf_recipes.core.random_state import random_state_kept

_ROWS_A_READ = 10_000
_PROBES = 8
_MATCHES_KEPT = 10


@dataclass(frozen=True)
class Piece:
    """Tokens of a batch that may be one row of the data set, padding behind them included.

    `input_ids` and `labels` are int64 of one length (`labels` may be None); at least the first `shortest` tokens are
    the row's, the rest may be padding.
    """

    input_ids: np.ndarray
    labels: np.ndarray | None
    shortest: int


@dataclass(frozen=True)
class DatasetRow:
    """A row of the data set that a piece equals; `source` and `row_id` are None where the data set has no such column.

    `labels_equal` is None where there are none to compare.
    """

    index: int
    source: str | None
    row_id: str | None
    tokens: int
    labels_equal: bool | None


def piece_of(input_ids: np.ndarray, labels: np.ndarray | None, *, padded: bool) -> Piece:
    """A piece; if `padded`, equal tokens at its end that are not trained may be padding."""
    length = len(input_ids)
    if not padded or not length:
        return Piece(input_ids, labels, length)
    like_the_last = input_ids == input_ids[-1]
    if labels is not None:
        like_the_last &= labels < 0
    others = np.flatnonzero(~like_the_last)
    return Piece(input_ids, labels, max(1, int(others[-1]) + 1 if others.size else 1))


def find_rows(dataset: Any, pieces: Sequence[Piece], seconds: float) -> tuple[list[list[DatasetRow]], str | None]:
    """Look for every piece in the whole data set.

    Args:
        dataset: a `datasets.Dataset`, packed or not, or anything indexable whose rows have ``input_ids``.
        seconds: after which the search ends unfinished.

    Returns:
        For every piece the rows it equals (ten at most; those of other labels only if none has the same); and why
        some are not known, or None.
    """
    found: list[list[DatasetRow]] = [[] for _ in pieces]
    parts = _parts_of(dataset)
    if parts is None:
        return found, f"the rows of {type(dataset).__name__} cannot be searched for input_ids"
    end = time.monotonic() + seconds
    why = None
    with random_state_kept():  # a data set of the user's may draw numbers
        for part in parts:
            for matches, piece in zip(found, pieces, strict=True):
                matches += part.rows_equal_to(piece)
            if time.monotonic() > end:
                why = f"the search was ended after {seconds:g} s"
                break
    return [_best(matches) for matches in found], why


def _best(matches: list[DatasetRow]) -> list[DatasetRow]:
    same = [row for row in matches if row.labels_equal is not False]
    return (same or matches)[:_MATCHES_KEPT]


@dataclass(frozen=True)
class _Part:
    """Some rows one after the other: all their tokens, the length of each row, and how to read its other columns."""

    first: int
    tokens: np.ndarray
    lengths: np.ndarray
    column: Callable[[str, int], Any]

    def rows_equal_to(self, piece: Piece) -> list[DatasetRow]:
        """All rows of this part that `piece` begins with and that leave nothing but what may be padding."""
        starts = np.cumsum(self.lengths) - self.lengths
        rows = np.flatnonzero((self.lengths >= max(1, piece.shortest)) & (self.lengths <= len(piece.input_ids)))
        for probe in np.unique(np.linspace(0, piece.shortest - 1, _PROBES).astype(int)):
            rows = rows[self.tokens[starts[rows] + probe] == piece.input_ids[probe]]
        return [self._row(int(row), piece) for row in rows if self._equals(starts[row], self.lengths[row], piece)]

    def _equals(self, start: int, length: int, piece: Piece) -> bool:
        return np.array_equal(self.tokens[start : start + length], piece.input_ids[:length])

    def _row(self, row: int, piece: Piece) -> DatasetRow:
        length = int(self.lengths[row])
        source, row_id = self.column("source", row), self.column("row_id", row)
        return DatasetRow(
            self.first + row,
            None if source is None else str(source),
            None if row_id is None else str(row_id),
            length,
            _labels_equal(self.column("labels", row), piece.labels, length),
        )


def _labels_equal(stored: Any, labels: np.ndarray | None, length: int) -> bool | None:
    """Whether the labels agree. The first has no part in the loss, and packing masks it."""
    if stored is None or labels is None:
        return None
    return np.array_equal(np.asarray(stored)[1:length], labels[1:length])


def _parts_of(dataset: Any) -> Iterator[_Part] | None:
    samples = _samples_behind(dataset)
    if not hasattr(samples, "__len__") or not hasattr(samples, "__getitem__"):
        return None  # a stream
    if hasattr(samples, "with_format") and "input_ids" in samples.column_names:
        return _arrow_parts(samples)
    return _plain_parts(samples)  # one row at a time, as a transform or the user's class gives it


def _samples_behind(dataset: Any) -> Any:
    """The samples that packed rows are made of, where the data set's transform tells them; else `dataset` itself."""
    data_format = getattr(dataset, "format", None)
    arguments = data_format.get("format_kwargs", {}) if isinstance(data_format, Mapping) else {}
    return getattr(arguments.get("transform"), "samples", dataset)


def _arrow_parts(dataset: Any) -> Iterator[_Part]:
    import pyarrow.compute as pc

    names = [name for name in ("input_ids", "labels", "source", "row_id") if name in dataset.column_names]
    first = 0
    for table in dataset.select_columns(names).with_format("arrow").iter(batch_size=_ROWS_A_READ):
        ids = table.column("input_ids")
        lengths = pc.fill_null(pc.list_value_length(ids), 0).to_numpy().astype(np.int64)
        yield _Part(first, pc.list_flatten(ids).to_numpy(), lengths, _reader(table))
        first += len(lengths)


def _reader(table: Any) -> Callable[[str, int], Any]:
    return lambda name, row: table.column(name)[row].as_py() if name in table.column_names else None


def _plain_parts(dataset: Any) -> Iterator[_Part]:
    for index in range(len(dataset)):
        row = dataset[index]
        ids = row.get("input_ids") if isinstance(row, Mapping) else None
        if ids is not None:
            tokens = np.asarray(ids)
            yield _Part(index, tokens, np.array([len(tokens)]), partial(_value, row))


def _value(row: Mapping[str, Any], name: str, _: int) -> Any:
    return row.get(name)
