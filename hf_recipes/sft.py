"""Supervised fine-tuning by a recipe: `accelerate launch -m hf_recipes.sft --config RECIPE [--key value …]`.

`hf-recipes sft` starts this module with checks before it and an exit code after it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.log import show_on_console
from hf_recipes.core.ranks import rank


def split_config(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Take ``--config PATH_OR_NAME`` out of the arguments; the rest are recipe keys. Raises `UserError` without one."""
    rest = list(arguments)
    for position, argument in enumerate(rest):
        if argument == "--config" and position + 1 < len(rest):
            return rest[position + 1], rest[:position] + rest[position + 2 :]
        if argument.startswith("--config="):
            return argument.removeprefix("--config="), rest[:position] + rest[position + 1 :]
    raise UserError("No recipe given: write --config PATH_OR_NAME (`hf-recipes ls` lists the shipped ones).")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run on every rank; returns the exit code (0 under `hf-recipes sft`, which reads status.json instead)."""
    from hf_recipes.training.environment import LAUNCHED_BY_US

    show_on_console(rank())
    try:
        config, keys = split_config(sys.argv[1:] if arguments is None else arguments)
        _train(config, keys)
    except (UserError, CheckFailed) as error:
        if rank() == 0:
            print(f"hf-recipes: {error}", file=sys.stderr)
        # A launcher answers a rank's non-zero exit with a traceback of its own.
        return 0 if os.environ.get(LAUNCHED_BY_US) else error.exit_code
    return 0


def _train(config: str, keys: list[str]) -> None:
    from hf_recipes.recipe.resolve import load_recipe

    recipe = load_recipe(config, keys)
    from hf_recipes.training.run import train

    try:
        train(recipe)
    finally:
        from accelerate import PartialState

        PartialState().destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
