"""`hf-recipes ls`: the shipped recipes."""

from __future__ import annotations

import argparse
import json

from hf_recipes.core.tables import render_table
from hf_recipes.recipe.shipped import shipped_recipes, summary

HELP = "List the recipes that come with the package; `hf-recipes cp NAME` copies one to edit it."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="names, files and summaries as JSON")


def run(options: argparse.Namespace) -> int:
    """Print names and summaries."""
    recipes = [(name, str(path), summary(path)) for name, path in shipped_recipes().items()]
    if options.json:
        print(json.dumps([dict(zip(("name", "path", "summary"), recipe, strict=True)) for recipe in recipes], indent=2))
    else:
        print(render_table(("recipe", "what it does"), [(name, text) for name, _, text in recipes]))
    return 0
