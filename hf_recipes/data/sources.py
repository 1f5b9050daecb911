"""Where rows come from: local files (see `readers`) or a dataset on the Hub, as a recipe's ``datasets:`` names them.

Neither torch nor datasets is imported here until a Hub dataset is read.
"""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.data.ledger import BadRow, Ledger, Place
from hf_recipes.data.readers import READERS, RowOrFault, read_file

ROLES = ("domain", "general")
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
    """

    path: str
    name: str | None = None
    split: str | None = None
    data_files: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    role: str = "domain"
    format: str = "auto"
    weight: float = 1.0

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
    def label(self) -> str:
        """A short name: the file's name without its ending, or the dataset's name on the Hub."""
        return Path(self.path).stem or self.path if looks_local(self.path) else self.path


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
    for key in ("name", "split"):
        if not isinstance(given.get(key, ""), str):
            raise UserError(f"{where}: {key} must be text, not {given[key]!r}.")
    files = given.get("data_files", ())
    if not isinstance(files, (str, list, tuple)) or not all(isinstance(file, str) for file in files):
        raise UserError(f"{where}: data_files must be a file name or a list of them, not {files!r}.")
    _check_columns(given.get("columns", {}), where)
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


def looks_local(path: str) -> bool:
    """Whether `path` exists or is written like a path rather than like a Hub name (``name`` or ``owner/name``)."""
    if Path(path).expanduser().exists() or Path(path).suffix.lower() in READERS:
        return True
    return path.startswith((".", "/", "~")) or "\\" in path or path.count("/") > 1 or glob.has_magic(path)


def find_files(spec: SourceSpec) -> list[Path] | None:
    """The local files of a source in a fixed order, or None for a dataset on the Hub.

    Raises:
        UserError: a file does not exist, has an unknown ending, or settings only Hub datasets know were given.
    """
    if not looks_local(spec.path):
        return None
    for key in ("name", "split"):
        if getattr(spec, key) not in (None, "train"):
            raise UserError(f"'{spec.path}' is local and has no {key} '{getattr(spec, key)}': remove that key.")
    root = Path(spec.path).expanduser()
    if spec.data_files:
        if not root.is_dir():
            raise UserError(f"data_files are looked up in '{spec.path}', which is not a directory.")
        files = [file for pattern in spec.data_files for file in _expand(root / Path(pattern).expanduser())]
    elif root.is_dir():
        files = sorted(file for file in root.iterdir() if file.suffix.lower() in READERS)
        if not files:
            raise UserError(f"Directory '{spec.path}' holds no {', '.join(READERS)} file.")
    else:
        files = _expand(root)
    for file in files:
        if file.suffix.lower() not in READERS:
            raise UserError(f"'{file}' has an unknown ending '{file.suffix}': known are {', '.join(READERS)}.")
    return list(dict.fromkeys(files))


def _expand(pattern: Path) -> list[Path]:
    if pattern.is_file():
        return [pattern]
    found = sorted(glob.glob(str(pattern), recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
    matches = [Path(match) for match in found if Path(match).is_file()]
    if not matches:
        raise UserError(f"Data file '{pattern}' does not exist: check the path.")
    return matches


def read_rows(spec: SourceSpec, ledger: Ledger) -> Iterator[tuple[Place, dict[str, Any]]]:
    """All rows of a source in order, with `columns` applied; unreadable rows go to the ledger.

    Raises:
        UserError: a file is absent, empty, not UTF-8 or not of its kind; a Hub dataset cannot be had.
    """
    files = find_files(spec)
    rows = _hub_rows(spec) if files is None else (row for file in files for row in read_file(file))
    for place, value in rows:
        ledger.read += 1
        if isinstance(value, BadRow):
            ledger.bad(place, value)
        elif not isinstance(value, dict):
            ledger.bad(place, BadRow("the row is not an object with named fields", type(value).__name__))
        else:
            yield place, rename(value, spec.columns)


def rename(row: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Give the columns of a row our field names (`columns`: ours → theirs); other columns stay as they are."""
    if not columns:
        return row
    taken = set(columns.values())
    others = {key: value for key, value in row.items() if key not in taken}
    return {**others, **{ours: row[theirs] for ours, theirs in columns.items() if theirs in row}}


def load_hub_dataset(spec: SourceSpec) -> Any:
    """Load a dataset by its Hub name (`datasets.Dataset`); any failure is one `UserError` sentence."""
    import datasets

    try:
        return datasets.load_dataset(
            spec.path, spec.name, split=spec.split or "train", data_files=list(spec.data_files) or None
        )
    except Exception as error:  # the hub, http and dataset libraries raise many kinds
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"'{spec.path}' is no local file, and as a dataset on the Hub it cannot be read ({lines[0].rstrip('.')}): "
            "check the name, the network and your access, or give a local path."
        ) from None


def _hub_rows(spec: SourceSpec) -> Iterator[tuple[Place, RowOrFault]]:
    dataset = load_hub_dataset(spec)
    if not len(dataset):
        raise UserError(f"Dataset '{spec.path}', split '{spec.split or 'train'}', holds no rows.")
    for number, row in enumerate(dataset):
        yield Place(spec.path, number), row
