"""`hf-recipes inspect`: what a recipe really trains on."""

from __future__ import annotations

import argparse
import json
import sys

from hf_recipes.core.errors import UserError

HELP = """Show what a recipe trains on: the account of every source, then real batches as text with the trained part
marked («…», or green on a terminal). Any recipe key can be given as --key value.
"""
TAKES_RECIPE_KEYS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--batches``, ``--json``."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("--batches", type=int, default=5, metavar="N", help="batches to print (default 5)")
    parser.add_argument("--json", action="store_true", help="print the account of the data as JSON and no batches")


def run(options: argparse.Namespace) -> int:
    """Prepare the data as a run would, and print it."""
    if not options.config:
        raise UserError("No recipe given: write --config RECIPE (`hf-recipes ls` lists the shipped ones).")
    if options.batches < 0:
        raise UserError(f"--batches: {options.batches} is not a number of batches: give 0 or more.")
    from hf_recipes.data.check import check_sources
    from hf_recipes.recipe.resolve import load_recipe

    recipe = load_recipe(options.config, options.recipe_keys)
    check_sources(recipe.values["datasets"], recipe.get("bad_rows", "drop"))

    from hf_recipes.data.inspect import render_batches
    from hf_recipes.data.prepare import prepare_data
    from hf_recipes.data.report import report_table
    from hf_recipes.data.settings import data_settings
    from hf_recipes.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(
        recipe.values["model_name_or_path"],
        revision=recipe.get("model_revision"),
        chat_template_path=recipe.get("chat_template_path"),
        trust_remote_code=recipe.get("trust_remote_code", False),
    )
    data = prepare_data(recipe.values["datasets"], tokenizer, **data_settings(recipe.values))
    if options.json:
        print(json.dumps(data.report, ensure_ascii=False, indent=2))
        return 0
    print(report_table(data.report))
    batch_size = recipe.get("per_device_train_batch_size", 8)
    for line in render_batches(data.train, tokenizer, options.batches, batch_size, color=sys.stdout.isatty()):
        print(line)
    return 0
