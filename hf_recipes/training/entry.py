"""What each rank runs: recipe in, exit code out. The recipe is checked before torch and transformers are imported."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.core.log import show_on_console
from hf_recipes.core.ranks import rank
from hf_recipes.training.environment import LAUNCHED_BY_US, leave_with_parent


def run_on_ranks(train: str, arguments: Sequence[str]) -> int:
    """Load the recipe named by ``--config`` with the keys after it, and train.

    Args:
        train: ``module:function`` that takes the recipe; imported only once the recipe is sound.
        arguments: The command line.

    Returns:
        The exit code; 0 in any case under `hf-recipes sft`, which reads status.json, because a launcher answers a
        rank's non-zero exit with a traceback of its own.
    """
    show_on_console(rank())
    if parent := os.environ.get(LAUNCHED_BY_US):
        leave_with_parent(int(parent))
    try:
        config, keys = split_config(arguments)
        _train(train, config, keys)
    except (UserError, CheckFailed) as error:
        if rank() == 0:
            print(f"hf-recipes: {error}", file=sys.stderr)
        return 0 if os.environ.get(LAUNCHED_BY_US) else error.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


def split_config(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Take ``--config PATH_OR_NAME`` out of the arguments; the rest are recipe keys. Raises `UserError` without one."""
    rest = list(arguments)
    for position, argument in enumerate(rest):
        if argument == "--config" and position + 1 < len(rest):
            return rest[position + 1], rest[:position] + rest[position + 2 :]
        if argument.startswith("--config="):
            return argument.removeprefix("--config="), rest[:position] + rest[position + 1 :]
    raise UserError("No recipe given: write --config PATH_OR_NAME (`hf-recipes ls` lists the shipped ones).")


def _train(train: str, config: str, keys: list[str]) -> None:
    from hf_recipes.recipe.resolve import load_recipe

    recipe = load_recipe(config, keys)
    module, function = train.split(":")
    run = getattr(importlib.import_module(module), function)
    try:
        run(recipe)
    finally:
        from accelerate import PartialState

        PartialState().destroy_process_group()
