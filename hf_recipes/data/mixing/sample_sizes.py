"""How large a sample is by rows, tokens or supervised tokens: of whole datasets, and of one row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hf_recipes.core.errors import UserError
from hf_recipes.core.labels import IGNORED_LABEL

if TYPE_CHECKING:
    import pyarrow as pa
    from datasets import Dataset

COLUMNS = {"tokens": "input_ids", "supervised_tokens": "labels"}
ROWS_AT_ONCE = 16384


def sample_sizes(dataset: Dataset, unit: str) -> npt.NDArray[np.int64]:
    """Size of every row of `dataset` in `unit` (int64).

    Tokens are the lengths of the column ``input_ids``, supervised tokens the entries of ``labels`` that are not -100.
    The Arrow columns are read in pieces, so that memory does not grow with them.

    Raises:
        UserError: the column is missing or holds no lists.
    """
    if unit == "rows":
        return np.ones(len(dataset), np.int64)
    check_measurable(dataset.column_names, unit)
    column = dataset.data.column(COLUMNS[unit])
    measure = _lengths if unit == "tokens" else _learned
    try:
        sizes = np.concatenate([np.zeros(0, np.int64), *(measure(piece) for piece in _pieces(column))])
    except NotImplementedError:  # pyarrow: no lengths of a column that holds no lists
        raise UserError(f"Column {COLUMNS[unit]} must hold lists of token ids, not {column.type}.") from None
    indices = dataset._indices  # where rows were selected or shuffled
    return sizes if indices is None else sizes[indices.column(0).to_numpy()]


def row_size(unit: str) -> Callable[[Mapping[str, Any]], int]:
    """The function that gives the size of one row in `unit`; it raises `UserError` where the column is missing."""
    return {"rows": _one, "tokens": _row_tokens, "supervised_tokens": _row_supervised_tokens}[unit]


def check_measurable(columns: Any, unit: str) -> None:
    """Raise `UserError` where `columns` lack the one that `unit` is counted by."""
    if unit != "rows" and COLUMNS[unit] not in columns:
        raise UserError(f"Shares by {unit} need tokenised rows with a column {COLUMNS[unit]}: use unit='rows'.")


def _pieces(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        for start in range(0, len(chunk), ROWS_AT_ONCE):
            yield chunk.slice(start, ROWS_AT_ONCE)


def _lengths(lists: pa.Array) -> npt.NDArray[np.int64]:
    import pyarrow.compute as pc

    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)


def _learned(lists: pa.Array) -> npt.NDArray[np.int64]:
    import pyarrow.compute as pc

    ends = _lengths(lists).cumsum()
    learned = pc.fill_null(lists.flatten(), IGNORED_LABEL).to_numpy(zero_copy_only=False) != IGNORED_LABEL
    before = np.concatenate([[0], learned.cumsum(dtype=np.int64)])[np.concatenate([[0], ends])]
    return np.diff(before)


def _one(row: Mapping[str, Any]) -> int:
    return 1


def _row_tokens(row: Mapping[str, Any]) -> int:
    check_measurable(row, "tokens")
    return len(row["input_ids"])


def _row_supervised_tokens(row: Mapping[str, Any]) -> int:
    check_measurable(row, "supervised_tokens")
    return int(np.count_nonzero(np.asarray(row["labels"]) != IGNORED_LABEL))
