"""Which local files a source is made of."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.data.reading.readers import PLAIN_TEXT, READERS, ending
from hf_recipes.data.reading.source_spec import SourceSpec, looks_local

SAVED_SPLITS = "dataset_dict.json"  # what `datasets.DatasetDict.save_to_disk` writes beside one directory a split
SAVED_DATASET = "state.json"  # what `datasets.Dataset.save_to_disk` writes beside its Arrow files


def find_files(spec: SourceSpec) -> list[Path] | None:
    """The local files of a source in a fixed order, or None for a dataset on the Hub.

    A directory stands for the data files in it (plain text only where there is nothing else), or for what
    `datasets` saved there.

    Raises:
        UserError: a file does not exist, has an unknown ending, or settings only Hub datasets know were given.
    """
    if not looks_local(spec.path):
        return None
    root = Path(spec.path).expanduser()
    if not spec.data_files and ((root / SAVED_SPLITS).is_file() or (root / SAVED_DATASET).is_file()):
        return _saved_files(root, spec)
    for key in ("name", "split"):
        if getattr(spec, key) not in (None, "train"):
            raise UserError(f"'{spec.path}' is local and has no {key} '{getattr(spec, key)}': remove that key.")
    if spec.data_files:
        if not root.is_dir():
            raise UserError(f"data_files are looked up in '{spec.path}', which is not a directory.")
        files = [file for pattern in spec.data_files for file in _expand(root / Path(pattern).expanduser())]
    else:
        files = _directory(root, spec.path) if root.is_dir() else _expand(root)
    for file in files:
        if ending(file) not in READERS and spec.format != "text":
            raise UserError(
                f"'{file}' has an unknown ending '{ending(file)}': known are {', '.join(READERS)}; "
                "with format: text, files of other endings are taken whole, one row each."
            )
    return list(dict.fromkeys(files))


def taken_whole(files: list[Path]) -> bool:
    """Whether files are one row each: one among them is of no kind that has rows (code, prose)."""
    return any(ending(file) not in READERS for file in files)


def _directory(root: Path, name: str) -> list[Path]:
    known = sorted(file for file in root.iterdir() if file.is_file() and ending(file) in READERS)
    files = [file for file in known if ending(file) not in PLAIN_TEXT] or known
    if not files:
        raise UserError(
            f"Directory '{name}' holds no {', '.join(READERS)} file; files further down, or of other kinds "
            "(format: text), are named with data_files, e.g. data_files: '**/*.py'."
        )
    return files


def _saved_files(root: Path, spec: SourceSpec) -> list[Path]:
    """The Arrow files of a dataset that was saved with `save_to_disk`."""
    if spec.name is not None:
        raise UserError(f"'{spec.path}' is local and has no name '{spec.name}': remove that key.")
    if (root / SAVED_SPLITS).is_file():
        root = root / _saved_split(root, spec)
    elif spec.split not in (None, "train"):
        raise UserError(f"'{spec.path}' is one saved split and has no split '{spec.split}': remove that key.")
    files = [root / file["filename"] for file in _saved_json(root / SAVED_DATASET)["_data_files"]]
    for file in files:
        if not file.is_file():
            raise UserError(f"Data file '{file}', which '{root / SAVED_DATASET}' names, does not exist: copy it there.")
    return files


def _saved_split(root: Path, spec: SourceSpec) -> str:
    splits = [str(name) for name in _saved_json(root / SAVED_SPLITS)["splits"]]
    wanted = spec.split or (splits[0] if len(splits) == 1 else "train")
    if wanted not in splits:
        raise UserError(f"'{spec.path}' has no split '{wanted}': set split to one of {', '.join(splits)}.")
    return wanted


def _saved_json(file: Path) -> Any:
    try:
        return read_json(file)
    except (OSError, ValueError) as error:
        raise UserError(f"'{file}', which says what a saved dataset is made of, cannot be read ({error}).") from None


def _expand(pattern: Path) -> list[Path]:
    if pattern.is_file():
        return [pattern]
    found = sorted(glob.glob(str(pattern), recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
    matches = [Path(match) for match in found if Path(match).is_file()]
    if not matches:
        raise UserError(f"Data file '{pattern}' does not exist: check the path.")
    return matches
