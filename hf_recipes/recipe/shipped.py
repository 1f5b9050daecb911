"""The recipes that come with the package, found by name: `smollm2/sft_lora`; and beside them accelerate's
configurations, `accelerate/zero2`."""

from __future__ import annotations

import re
from pathlib import Path

from hf_recipes.core.errors import UserError, nearest

_PACKAGE = Path(__file__).resolve().parents[1]
_ACCELERATE = "accelerate"


def recipes_root() -> Path:
    """Where the shipped recipes lie: inside an installed package, or beside it in a source tree."""
    installed = _PACKAGE / "shipped_recipes"
    return installed if installed.is_dir() else _PACKAGE.parent / "recipes"


def shipped_recipes() -> dict[str, Path]:
    """Name → path of every shipped recipe, by name."""
    return {name: path for name, path in _shipped().items() if path.parent.name != _ACCELERATE}


def accelerate_files() -> dict[str, Path]:
    """Name → path of every configuration for ``accelerate launch --config_file``, by name."""
    return {name: path for name, path in _shipped().items() if path.parent.name == _ACCELERATE}


def _shipped() -> dict[str, Path]:
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


def copy_recipe(name: str, target: Path) -> list[Path]:
    """Copy a shipped recipe, or one of accelerate's configurations, to `target` (a file or an existing directory) for
    editing.

    Data paths inside a recipe stay valid: what is not beside a recipe is looked for among the shipped ones. With a
    configuration goes the DeepSpeed file it names, and it names the copy.

    Returns:
        The new files, the YAML first.

    Raises:
        UserError: no such recipe, or a target exists.
    """
    plain = name.removeprefix("recipes/").removesuffix(".yaml")
    source = accelerate_files().get(plain) or find_recipe(name)
    destination = target / source.name if target.is_dir() else target
    text = source.read_text(encoding="utf-8")
    copies = {destination: text}
    if named := re.search(r"^ *deepspeed_config_file: (\S+)", text, re.MULTILINE):
        beside = source.with_name(named[1])
        copy = destination.with_name(beside.name)
        copies = {
            destination: text.replace(f"deepspeed_config_file: {named[1]}", f"deepspeed_config_file: {copy}"),
            copy: beside.read_text(encoding="utf-8"),
        }
    for file in copies:
        if file.exists():
            raise UserError(f"'{file}' exists already: give another name, nothing was copied.")
    destination.parent.mkdir(parents=True, exist_ok=True)
    for file, content in copies.items():
        file.write_text(content, encoding="utf-8")
    return list(copies)
