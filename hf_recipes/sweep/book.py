"""`sweep.json`: what was tried and what came of it; by it a second call knows what is left to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import json_safe, read_json, write_json
from hf_recipes.sweep.axes import DECIDES, NOT_SWEPT, show
from hf_recipes.sweep.points import Point

SCHEMA = 1
NAME = "sweep.json"
# What makes no other trial: where it writes, what is done before and after.
_NO_MATTER = NOT_SWEPT | {"overfit_check", "preemption_poll_seconds", "preemption_grace_seconds", "plan_check"}


@dataclass
class Entry:
    """One trial of the book: its point, the hash of its recipe, and why it was pruned or left out, if it was."""

    name: str
    point: Point
    fingerprint: str
    pruned: str | None = None
    impossible: str | None = None
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass
class Book:
    """The content of sweep.json. `base` is the recipe without what is swept over, `keys` what is."""

    recipe: str
    base: dict[str, Any]
    keys: list[str]
    metric: str = "eval_loss"
    entries: dict[str, Entry] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def write(self, directory: Path) -> None:
        """Write it, whole or not at all."""
        write_json(directory / NAME, self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        """What the file holds."""
        return {
            "schema": SCHEMA,
            "recipe": self.recipe,
            "keys": self.keys,
            "metric": self.metric,
            **self.facts,
            "trials": [{**vars(entry)} for entry in self.entries.values()],
            "base": self.base,
        }


def read_book(directory: Path) -> Book | None:
    """The book of a sweep directory; None where there is none yet.

    Raises:
        UserError: the directory holds something else, or the book is damaged.
    """
    path = directory / NAME
    if directory.is_file():
        raise UserError(f"--output_dir: '{directory}' is a file: name a directory.")
    if not path.is_file():
        others = (
            [each.name for each in directory.iterdir() if each.name != ".writer.lock"] if directory.is_dir() else []
        )
        if others:
            raise UserError(
                f"--output_dir: '{directory}' holds something else ({sorted(others)[0]}) and no sweep: name a new "
                "directory."
            )
        return None
    try:
        found = read_json(path)
        entries = [Entry(**entry) for entry in found["trials"]]
        return Book(
            found["recipe"], found["base"], found["keys"], found["metric"], {entry.name: entry for entry in entries}
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or name another --output_dir.") from None


def recipe_keys(swept: Iterable[str]) -> set[str]:
    """The recipe's own top-level keys that are decided by what is swept over."""
    found: set[str] = set()
    for key in swept:
        found |= set(DECIDES.get(key, (key.partition(".")[0],)))
    return found | ({"learning_rate"} if "method" in found else set())


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's values as they read back from JSON."""
    safe = json_safe({key: value for key, value in values.items() if key not in _NO_MATTER})
    assert isinstance(safe, dict)
    return safe


def check_same_sweep(book: Book, directory: Path, recipe: str, values: Mapping[str, Any], swept: Iterable[str]) -> None:
    """Raise `UserError` where a sweep cannot be gone on with, since its other trials were of another recipe.

    Args:
        book: of the directory.
        directory: of the sweep.
        recipe: name of the recipe now.
        values: of the recipe now, without what is swept over.
        swept: keys that are swept over now.
    """
    if book.recipe != recipe:
        raise UserError(
            f"--output_dir: '{directory}' holds a sweep of '{book.recipe}', not of '{recipe}': name another directory."
        )
    now, free = plain_values(values), recipe_keys([*book.keys, *swept])
    differing = sorted(key for key in ({*now, *book.base} - free - _NO_MATTER) if now.get(key) != book.base.get(key))
    if differing:
        told = ", ".join(f"{key} {show(book.base.get(key))} → {show(now.get(key))}" for key in differing[:3])
        raise UserError(
            f"--output_dir: the trials in '{directory}' were made with other keys ({told}): name another directory, or "
            "sweep over them."
        )
