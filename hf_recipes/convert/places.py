"""Where files named in a configuration lie on this disk, and how a recipe names them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from hf_recipes.convert.answers import Answer, Config, taken
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import expanded, read_json
from hf_recipes.data.ledger import Ledger
from hf_recipes.data.reading.source_spec import BUILDERS, SourceSpec
from hf_recipes.data.reading.sources import read_rows

# LLaMA-Factory (data/converter.py, AlpacaDatasetConverter) and ms-swift (AlpacaPreprocessor) alike.
ALPACA_JOINED = "alpaca's instruction and input are joined by one line break there, by an empty line here"


def finder(config: Path, recipe: Path) -> Callable[[str], str | None]:
    """A function that gives a file's or directory's path for the recipe: relative to it where it lies on the same
    drive; None where there is no such file.

    It is looked for where one stands, beside the configuration, and in the three directories above that (configurations
    name files from the root of their repository).
    """

    def find(name: str) -> str | None:
        found = locate(name, config)
        if found is None:
            return None
        if expanded(name).is_absolute():
            return str(found)
        try:
            return Path(os.path.relpath(found, recipe.parent.resolve())).as_posix()
        except ValueError:  # another drive
            return str(found)

    return find


def reader(config: Path) -> Callable[[str], Any]:
    """A function that reads a JSON file named in the configuration; None where there is none, or it is not JSON."""

    def read(name: str) -> Any:
        found = locate(name, config)
        if found is None or not found.is_file():
            return None
        try:
            return read_json(found)
        except (OSError, ValueError):
            return None

    return read


def locate(name: str, config: Path) -> Path | None:
    """The file or directory a configuration means by `name`, or None."""
    given = expanded(name)
    if not name or "\n" in name:
        return None
    if given.is_absolute():
        return given if given.exists() else None
    folders = (Path.cwd(), *config.resolve().parents[:4])
    return next((folder / given for folder in folders if (folder / given).exists()), None)


def first_row(name: str, config: Config) -> dict[str, Any]:
    """The first row of a local file that a configuration names; empty where there is none that can be read."""
    place = locate(name, config.path)
    if place is None:
        return {}
    try:
        rows = read_rows(SourceSpec(str(place)), Ledger(name))
        return dict(next(rows, (None, {}))[1])
    except (UserError, OSError):
        return {}


def files_of(data_files: Any, config: Config) -> Answer:
    """The ``paths`` of a source that names a reader (``path: json``) and its ``data_files``, one or several."""
    names = [str(file) for file in (data_files if isinstance(data_files, list) else [data_files])]
    return taken({"paths": [config.find(name) or name for name in names]}, "data_files are the paths here")


def not_found(name: str) -> str:
    """What is told of a source that lies neither here nor beside the file."""
    if name in BUILDERS:
        return "a kind of file, not data: name the file itself"
    looks_local = name.startswith((".", "/", "~")) or PurePath(name).suffix in (".json", ".jsonl", ".csv", ".parquet")
    return "not found on this disk: put it there, or mend the path" if looks_local else "taken as a name on the Hub"
