"""One entry of a recipe's ``datasets:``, and what its keys may be."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.data.reading.readers import READERS, ending

ROLES = ("domain", "general")


# What `datasets.load_dataset` takes for a reader of files, not for data: without files it reads all where one stands.
BUILDERS = ("json", "csv", "parquet", "arrow", "text")


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
    def given(self) -> str | dict[str, Any]:
        """As one would write it in a recipe: the path alone, or a mapping of what is not by default."""
        values = {item.name: getattr(self, item.name) for item in dataclass_fields(self)}
        changed = {key: value for key, value in values.items() if value != getattr(SourceSpec(self.path), key)}
        return {"path": self.path, **changed} if changed else self.path

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
    if path in BUILDERS and not files and not Path(path).exists():
        raise UserError(f"{where}: '{path}' is a kind of file, not data: give the file itself, as in path: my.jsonl.")
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
        if ours not in FIELDS and theirs in FIELDS:
            raise UserError(
                f"{where}: columns is written the other way round, our field first: columns: {{{theirs}: {ours}}}."
            )
        if ours not in FIELDS:
            raise UserError(
                f"{where}: columns maps unknown field '{ours}'{nearest(str(ours), FIELDS)}; known: {', '.join(FIELDS)}."
            )
        if not isinstance(theirs, str):
            raise UserError(f"{where}: columns.{ours} must name a column of the file, not {theirs!r}.")


def looks_local(path: str) -> bool:
    """Whether `path` exists or is written like a path rather than like a Hub name (``name`` or ``owner/name``)."""
    if Path(path).expanduser().exists() or ending(Path(path)) in READERS:
        return True
    return path.startswith((".", "/", "~")) or "\\" in path or path.count("/") > 1 or glob.has_magic(path)
