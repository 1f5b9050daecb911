"""`hf-recipes cp`: a shipped recipe, copied for editing."""

from __future__ import annotations

import argparse
from pathlib import Path

from hf_recipes.recipe.shipped import copy_recipe

HELP = "Copy a shipped recipe to a file of your own. An existing file is never overwritten."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The recipe's name and the target."""
    parser.add_argument("name", metavar="NAME", help="a name from `hf-recipes ls`")
    parser.add_argument("target", nargs="?", default=".", metavar="FILE", help="file or directory (default: here)")


def run(options: argparse.Namespace) -> int:
    """Copy and say what to do next."""
    copied = copy_recipe(options.name, Path(options.target))
    print(f"Copied to {copied}. Next: hf-recipes sft --config {copied}")
    return 0
