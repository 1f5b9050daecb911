"""`hf-recipes cp`: a shipped recipe or launch configuration, copied for editing."""

from __future__ import annotations

import argparse
from pathlib import Path

from hf_recipes.recipe.shipped import accelerate_files, copy_recipe

HELP = "Copy a shipped recipe, or a launch configuration, to a file of your own. An existing file is never overwritten."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe's name and the target."""
    parser.add_argument("name", metavar="NAME", help="a name from `hf-recipes ls`")
    parser.add_argument("target", nargs="?", default=".", metavar="FILE", help="file or directory (default: here)")


def run(options: argparse.Namespace) -> int:
    """Copy and say what to do next."""
    copied, *beside = copy_recipe(options.name, Path(options.target))
    is_recipe = options.name.removeprefix("recipes/").removesuffix(".yaml") not in accelerate_files()
    told = " and ".join(map(str, (copied, *beside)))
    if not is_recipe:
        print(f"Copied to {told}. Next: hf-recipes sft --config RECIPE --config_file {copied}")
        return 0
    print(
        f"Copied to {told}. Its own: model_name_or_path, datasets, and evaluation (or leave that out). "
        f"Next: hf-recipes inspect --config {copied}"
    )
    return 0
