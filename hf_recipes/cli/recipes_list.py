"""`hf-recipes ls`: the shipped recipes, and the configurations for a launcher."""

from __future__ import annotations

import argparse
import json

from hf_recipes.core.tables import render_table
from hf_recipes.recipe.shipped import accelerate_files, shipped_recipes, summary

HELP = "List the recipes that come with the package, and accelerate's configurations; `hf-recipes cp NAME` copies one."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="names, kinds, files and summaries as JSON")


def run(options: argparse.Namespace) -> int:
    """Print names and summaries."""
    tables = {"recipe": shipped_recipes(), "accelerate": accelerate_files()}
    if options.json:
        found = [
            {"name": name, "kind": kind, "path": str(path), "summary": summary(path)}
            for kind, files in tables.items()
            for name, path in files.items()
        ]
        print(json.dumps(found, indent=2))
        return 0
    heads = {"recipe": "recipe", "accelerate": "launch configuration"}
    for kind, files in tables.items():
        print(render_table((heads[kind], "what it does"), [(name, summary(path)) for name, path in files.items()]))
        if kind == "recipe":
            print()
    return 0
