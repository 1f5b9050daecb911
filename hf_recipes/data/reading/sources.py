"""Where rows come from: local files (see `readers`) or a dataset on the Hub, as a recipe's ``datasets:`` names them.

Neither torch nor datasets is imported here until a Hub dataset is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import sha256_of_file
from hf_recipes.data.ledger import BadRow, Ledger, Place
from hf_recipes.data.reading.blocks import Block, Limits
from hf_recipes.data.reading.byte_streams import reading
from hf_recipes.data.reading.hub import hub_blocks, hub_identity
from hf_recipes.data.reading.readers import read_blocks
from hf_recipes.data.reading.source_files import find_files, taken_whole
from hf_recipes.data.reading.source_spec import ROW_FIELDS, SourceSpec
from hf_recipes.data.reading.text_files import whole_file_blocks


def as_specs(datasets: Sequence[SourceSpec | Mapping[str, Any]]) -> list[SourceSpec]:
    """Turn a recipe's ``datasets:`` into specs; raises `UserError` when there is none, or none of role domain."""
    specs = [
        item if isinstance(item, SourceSpec) else SourceSpec.from_dict(item, f"datasets[{index}]")
        for index, item in enumerate(datasets)
    ]
    if not any(spec.role == "domain" for spec in specs):
        raise UserError("datasets: names no source of role domain: give at least one file or dataset to learn from.")
    return specs


def eval_share_of(spec: SourceSpec, specs: Sequence[SourceSpec], default: float) -> float:
    """A source's own share; else none where its role has a given eval set among `specs`; else `default`."""
    if spec.eval_share is not None:
        return spec.eval_share
    return 0.0 if any(other.is_given_eval and other.role == spec.role for other in specs) else default


def unique_labels(specs: Sequence[SourceSpec]) -> list[str]:
    """One label a source; a second source of the same name becomes ``name#2``."""
    labels: list[str] = []
    for spec in specs:
        label, count = spec.label, 1
        while label in labels:
            count += 1
            label = f"{spec.label}#{count}"
        labels.append(label)
    return labels


def source_blocks(spec: SourceSpec, streaming: bool = False, limits: Limits = Limits()) -> Iterator[Block]:  # noqa: B008
    """All rows of a source in order, in blocks that can be sent to other processes.

    Args:
        spec: the source.
        streaming: read a Hub dataset over the network as it is used instead of fetching it first.
        limits: the size of a block.

    Raises:
        UserError: a file is absent, empty, of another encoding or not of its kind; a Hub dataset cannot be had.
    """
    files = find_files(spec)
    if files is None:
        yield from hub_blocks(spec, streaming, limits)
        return
    if taken_whole(files):
        yield from whole_file_blocks(files, limits)
        return
    for file in files:
        yield from read_blocks(file, limits)


def block_rows(block: Block, spec: SourceSpec, ledger: Ledger) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The rows of a block with `columns` applied; every row is counted as read, unreadable ones go to the ledger."""
    kept = [name for key in ROW_FIELDS if (name := getattr(spec, key))]
    for place, value in block.rows():
        ledger.read += 1
        if isinstance(value, BadRow):
            ledger.bad(place, value)
        elif not isinstance(value, dict):
            ledger.bad(place, BadRow("the row is not an object with named fields", type(value).__name__))
        else:
            yield place, rename(value, spec.columns, kept)


def read_rows(spec: SourceSpec, ledger: Ledger, streaming: bool = False) -> Iterator[tuple[Place, dict[str, Any]]]:
    """All rows of a source in order, with `columns` applied; unreadable rows go to the ledger.

    Raises:
        UserError: as `source_blocks` and, under ``bad_rows: fail``, for the first unreadable row.
    """
    for block in source_blocks(spec, streaming):
        yield from block_rows(block, spec, ledger)


def source_identity(spec: SourceSpec) -> list[str]:
    """What the content of a source is, for the key of a cache: it changes with a file's bytes or name, with the files
    there are, and with the revision of a Hub dataset.

    Returns:
        ``sha256:DIGEST NAME`` for each local file, or one line for a dataset on the Hub.

    Raises:
        UserError: a file cannot be read; the Hub dataset cannot be had.
    """
    files = find_files(spec)
    if files is None:
        return [hub_identity(spec)]
    return [f"sha256:{_sha256(file)} {file.name}" for file in files]


def _sha256(file: Path) -> str:
    with reading(file):
        return sha256_of_file(file)


def rename(row: dict[str, Any], columns: Mapping[str, str], kept: Sequence[str] = ()) -> dict[str, Any]:
    """Give the columns of a row our field names (`columns`: ours → theirs); other columns, and those `kept`, stay."""
    if not columns:
        return row
    taken = set(columns.values()).difference(kept)
    others = {key: value for key, value in row.items() if key not in taken}
    return {**others, **{ours: row[theirs] for ours, theirs in columns.items() if theirs in row}}
