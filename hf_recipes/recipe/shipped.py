"""The recipes that come with the package, found by name: `smollm2/sft_lora`."""

from __future__ import annotations

import shutil
from pathlib import Path

from hf_recipes.core.errors import UserError, nearest

_PACKAGE = Path(__file__).resolve().parents[1]


def recipes_root() -> Path:
    """Where the shipped recipes lie: inside an installed package, or beside it in a source tree."""
    installed = _PACKAGE / "shipped_recipes"
    return installed if installed.is_dir() else _PACKAGE.parent / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """Name → path of every shipped recipe, by name."""
    root = recipes_root()
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in sorted(root.rglob("*.yaml"))}


def find_recipe(path_or_name: str) -> Path:
    """The recipe file at a path, or the shipped one of that name (with or without ``.yaml``).

    Raises:
        UserError: there is neither, with the nearest shipped name.
    """
    path = Path(path_or_name)
    if path.is_file():
        return path
    name = path_or_name.removeprefix("recipes/").removesuffix(".yaml")
    shipped = shipped_recipes()
    if name in shipped:
        return shipped[name]
    hint = nearest(name, shipped) or "; `hf-recipes ls` lists the shipped ones"
    raise UserError(f"Recipe '{path_or_name}' is neither a file nor a shipped recipe{hint}.")


def summary(path: Path) -> str:
    """The first comment line of a recipe: what it does."""
    first = path.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def copy_recipe(name: str, target: Path) -> Path:
    """Copy a shipped recipe to `target` (a file or an existing directory) for editing; returns the new file.

    Data paths inside stay valid: what is not beside a recipe is looked for among the shipped ones.

    Raises:
        UserError: no such recipe, or the target exists.
    """
    source = find_recipe(name)
    destination = target / source.name if target.is_dir() else target
    if destination.exists():
        raise UserError(f"'{destination}' exists already: give another name, nothing was copied.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, destination)
    return destination
