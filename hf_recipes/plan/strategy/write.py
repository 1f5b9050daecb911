"""`plan --write DIR`: everything a planned run is started with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import write_json, write_text
from hf_recipes.plan.strategy.complete_recipe import complete_recipe
from hf_recipes.plan.strategy.launch_line import launch_lines, needs_accelerate_file
from hf_recipes.plan.strategy.launcher_files import ACCELERATE, DEEPSPEED, launcher_files
from hf_recipes.plan.strategy.names import describe, strategy_of
from hf_recipes.plan.strategy.search import Considered

RECIPE = "recipe.yaml"


@dataclass(frozen=True)
class Written:
    """What `write_plan` left: the files, and the command of each node."""

    files: tuple[Path, ...]
    launch_lines: tuple[str, ...]


def write_plan(
    directory: str | Path, taken: Considered, recipe_values: Mapping[str, Any], *, overwrite: bool = False
) -> Written:
    """Write the completed recipe and, where a launcher needs them, accelerate's config and DeepSpeed's.

    Args:
        directory: where to; made if it is not there.
        taken: the strategy, from `choose_strategy`.
        recipe_values: the keys the user gave.
        overwrite: replace files that are there.

    Raises:
        UserError: this package does not launch the strategy, or a file is there already.
    """
    layout = taken.layout
    if strategy_of(layout) is None:
        raise UserError(
            f"{describe(layout)} is planned but not launched by hf-recipes: start it with Megatron-LM or torchtitan, "
            "or take a strategy of its own."
        )
    folder = Path(directory)
    contents: dict[Path, Any] = {folder / RECIPE: complete_recipe(recipe_values, layout, taken.settings)}
    if needs_accelerate_file(layout):
        files = launcher_files(layout, str(folder / DEEPSPEED))
        contents |= {folder / name: files[name] for name in (DEEPSPEED, ACCELERATE) if name in files}
    refuse_existing(folder, overwrite)
    accelerate = folder / ACCELERATE if folder / ACCELERATE in contents else None
    lines = launch_lines(layout, folder / RECIPE, accelerate, names_output="output_dir" in recipe_values)
    head = _head(taken, lines)
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in contents.items():
        _write(path, content, head)
    for name in (RECIPE, ACCELERATE, DEEPSPEED):  # of another strategy: they would be taken for this one's
        if folder / name not in contents:
            (folder / name).unlink(missing_ok=True)
    return Written(tuple(contents), tuple(lines))


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Raise `UserError` where a plan was written before, and is not to be replaced."""
    there = [name for name in (RECIPE, ACCELERATE, DEEPSPEED) if (folder / name).exists()]
    if there and not overwrite:
        raise UserError(f"'{folder / there[0]}' is there already: name another directory, or give --overwrite.")


def _head(taken: Considered, lines: list[str]) -> str:
    told = f"# {taken.why or describe(taken.layout)}\n# Start it where paths below begin, with:\n"
    return told + "".join(f"#   {line}\n" for line in lines)


def _write(path: Path, content: Any, head: str) -> None:
    if path.suffix == ".json":
        write_json(path, content)
        return
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    write_text(path, head + text)
