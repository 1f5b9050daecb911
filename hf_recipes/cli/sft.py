"""`hf-recipes sft`: validate, launch the ranks, return the run's exit code."""

from __future__ import annotations

import argparse

from hf_recipes.cli.launching import add_launch_arguments, launch_recipe

HELP = """Fine-tune by a recipe: the same as `accelerate launch -m hf_recipes.sft --config RECIPE`, with the recipe and
the data checked before the ranks start, the world size checked after, and the run's own exit code.

Any recipe key can be given as --key value; nested ones dotted: --watch.spike_sigma 8, --datasets.0.path FILE.
"""
TAKES_RECIPE_KEYS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Launcher flags are a closed list; every other flag is a recipe key."""
    add_launch_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Validate, launch, return the exit code of the run."""
    from hf_recipes.data.check import check_sources

    return launch_recipe("hf_recipes.sft", options, check_sources)
