"""`hf-recipes classify`: validate, launch the ranks of a classification run, return its exit code."""

from __future__ import annotations

import argparse

from hf_recipes.cli.launching import add_launch_arguments, launch_recipe

HELP = """Fine-tune a text classifier by a recipe, with the plain Trainer: rows of `text` and `label`; the balance of
the labels and the initialisation of the head are checked. Any recipe key can be given as --key value.
"""
TAKES_RECIPE_KEYS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Launcher flags are a closed list; every other flag is a recipe key."""
    add_launch_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Validate, launch, return the exit code of the run."""
    from hf_recipes.data.classification import check_classification_sources

    return launch_recipe("hf_recipes.classify", options, check_classification_sources)
