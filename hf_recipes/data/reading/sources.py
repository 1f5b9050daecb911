"""Where rows come from: local files (see `readers`) or a dataset on the Hub, as a recipe's ``datasets:`` names them.

Neither torch nor datasets is imported here until a Hub dataset is read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.data.ledger import BadRow, Ledger, Place
from hf_recipes.data.reading.blocks import Block, Limits
from hf_recipes.data.reading.byte_streams import reading
from hf_recipes.data.reading.hub import hub_blocks, hub_identity
from hf_recipes.data.reading.readers import ending, read_blocks
from hf_recipes.data.reading.source_files import find_files, looks_local, taken_whole
from hf_recipes.data.reading.text_files import whole_file_blocks

ROLES = ("domain", "general")
ROW_FIELDS = ("group_by", "stratify_by", "balance_by")
FORMAT_NAMES = ("auto", "alpaca", "sharegpt", "messages", "prompt_completion", "text")
FIELDS = (
    "instruction",
    "input",
    "output",
    "system",
    "history",
    "conversations",
    "messages",
    "tools",
    "prompt",
    "completion",
    "text",
    "label",
)


@dataclass(frozen=True)
class SourceSpec:
    """One entry of a recipe's ``datasets:``.

    Args:
        path: a local file, directory or glob pattern, or the name of a dataset on the Hub.
        name: the configuration of a Hub dataset.
        split: the split of a Hub dataset (``train`` by default; ``train[:1000]`` works).
        data_files: files or patterns inside the directory `path`, or absolute ones.
        columns: our field name → the file's column, e.g. ``{instruction: question, output: answer}``.
        role: ``domain`` is what to learn, ``general`` is mixed in against forgetting.
        format: how a row is laid out; ``auto`` finds it from the first rows.
        weight: how the general rows are shared out among several general sources.
        eval_share: the part of this source to hold out, instead of the recipe's; 1 makes it a given eval set, which is
            used whole and as it is.
        group_by: a field of the row; rows of equal value stay on one side of the split.
        stratify_by: a field of the row; the split keeps the proportions of its values.
        balance_by: a field of the row; the rows of every value are cut down to the rarest value's number.
    """

    path: str
    name: str | None = None
    split: str | None = None
    data_files: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    role: str = "domain"
    format: str = "auto"
    weight: float = 1.0
    eval_share: float | None = None
    group_by: str | None = None
    stratify_by: str | None = None
    balance_by: str | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "datasets[0]") -> SourceSpec:
        """Build a spec from a recipe's mapping; raises `UserError` that names `where`, the key and what it may be."""
        if not isinstance(values, Mapping):
            raise UserError(f"{where} must be a mapping with at least a path, not {values!r}.")
        known = [item.name for item in dataclass_fields(cls)]
        for key in values:
            if key not in known:
                raise UserError(f"{where}: unknown key '{key}'{nearest(str(key), known)}; known: {', '.join(known)}.")
        given = {key: value for key, value in values.items() if value is not None}
        _check_values(given, where)
        files = given.pop("data_files", ())
        return cls(**given, data_files=(files,) if isinstance(files, str) else tuple(files))

    @property
    def is_given_eval(self) -> bool:
        """Whether it is an eval set of its own (``eval_share: 1``), used whole and as it is."""
        return self.eval_share == 1

    @property
    def label(self) -> str:
        """A short name: the file's name without its ending, or the dataset's name on the Hub."""
        if not looks_local(self.path):
            return self.path
        name = Path(self.path).name
        return name[: len(name) - len(ending(Path(name)))] or self.path


def _check_values(given: Mapping[str, Any], where: str) -> None:
    path = given.get("path")
    if not isinstance(path, str) or not path.strip():
        raise UserError(f"{where}: path must name a file, a directory or a dataset on the Hub.")
    for key, choices in (("role", ROLES), ("format", FORMAT_NAMES)):
        value = given.get(key, choices[0])
        if value not in choices:
            raise UserError(
                f"{where}: {key} '{value}'{nearest(str(value), choices)} must be one of {', '.join(choices)}."
            )
    for key in ("name", "split", *ROW_FIELDS):
        if not isinstance(given.get(key, "?"), str) or not given.get(key, "?").strip():
            raise UserError(f"{where}: {key} must be a name, not {given[key]!r}.")
    files = given.get("data_files", ())
    if not isinstance(files, (str, list, tuple)) or not all(isinstance(file, str) for file in files):
        raise UserError(f"{where}: data_files must be a file name or a list of them, not {files!r}.")
    _check_columns(given.get("columns", {}), where)
    eval_share = given.get("eval_share", 0)
    if isinstance(eval_share, bool) or not isinstance(eval_share, (int, float)) or not 0 <= eval_share <= 1:
        raise UserError(
            f"{where}: eval_share must be a number from 0 to 1 (1: all of it is held out), not {eval_share!r}."
        )
    weight = given.get("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, (int, float)) or not 0 < weight < float("inf"):
        raise UserError(f"{where}: weight must be a number above 0, not {weight!r}.")
    if weight != 1 and given.get("role", "domain") != "general":
        raise UserError(f"{where}: weight shares out general rows only; remove it or set role: general.")


def _check_columns(columns: Any, where: str) -> None:
    if not isinstance(columns, Mapping):
        raise UserError(f"{where}: columns must map our field names to the file's columns, not {columns!r}.")
    for ours, theirs in columns.items():
        if ours not in FIELDS:
            raise UserError(
                f"{where}: columns maps unknown field '{ours}'{nearest(str(ours), FIELDS)}; known: {', '.join(FIELDS)}."
            )
        if not isinstance(theirs, str):
            raise UserError(f"{where}: columns.{ours} must name a column of the file, not {theirs!r}.")


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
    with reading(file), open(file, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def rename(row: dict[str, Any], columns: Mapping[str, str], kept: Sequence[str] = ()) -> dict[str, Any]:
    """Give the columns of a row our field names (`columns`: ours → theirs); other columns, and those `kept`, stay."""
    if not columns:
        return row
    taken = set(columns.values()).difference(kept)
    others = {key: value for key, value in row.items() if key not in taken}
    return {**others, **{ours: row[theirs] for ours, theirs in columns.items() if theirs in row}}
