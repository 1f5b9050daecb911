"""A quick look at a recipe's data before anything is started: no tokenizer, no torch, no network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BAD_ROWS, Ledger, Place
from hf_recipes.data.reading.formats import detect_format
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import as_specs, find_files, read_rows, source_blocks, unique_labels

FIRST_ROWS = 20
Rows = Iterator[tuple[Place, dict[str, Any]]]


def check_sources(specs: Sequence[SourceSpec | Mapping[str, Any]], bad_rows: str = "drop") -> None:
    """Check that every local source exists, can be read and has a known format, by its first rows.

    Datasets on the Hub are left for later.

    Raises:
        UserError: what is wrong, with the file and row.
    """
    check_bad_rows(bad_rows)
    sources = as_specs(specs)
    for spec, label in zip(sources, unique_labels(sources), strict=True):
        if find_files(spec) is not None:
            open_source(spec, Ledger(label, bad_rows))


def check_bad_rows(bad_rows: str) -> None:
    """Raise `UserError` unless `bad_rows` is ``drop`` or ``fail``."""
    if bad_rows not in BAD_ROWS:
        raise UserError(f"bad_rows must be one of {', '.join(BAD_ROWS)}, not '{bad_rows}'.")


def open_source(spec: SourceSpec, ledger: Ledger, streaming: bool = False) -> tuple[str, Rows]:
    """The format of a source and all its rows, of which only the first have been read when this returns; under
    `streaming` a dataset on the Hub is read over the network as it is used.

    Raises:
        UserError: no row can be read, a column to rename is absent, or the format is unknown or not the one asked for.
    """
    rows = read_rows(spec, ledger, streaming)
    first = list(islice(rows, FIRST_ROWS))
    if not first:
        raise UserError(f"No row of '{spec.path}' can be read: {ledger.reasons()}.")
    fields = [row for _, row in first]
    _check_columns(spec, streaming)
    return detect_format(fields, spec.path, spec.format), chain(first, rows)


def _check_columns(spec: SourceSpec, streaming: bool) -> None:
    """Raise `UserError` for a column to rename that no first row has, before its name would be replaced."""
    if not spec.columns:
        return
    rows = (row for block in source_blocks(spec, streaming) for _, row in block.rows())
    first = [row for row in islice(rows, FIRST_ROWS) if isinstance(row, dict)]
    for ours, theirs in spec.columns.items():
        if not any(theirs in row for row in first):
            keys = ", ".join(map(str, first[0]))
            raise UserError(f"'{spec.path}' has no column '{theirs}' to use as {ours}: its first row has {keys}.")
