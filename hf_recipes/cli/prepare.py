"""`hf-recipes prepare`: tokenise a recipe's data ahead of the run, whole or one shard of it."""

from __future__ import annotations

import argparse
import json
import re

from hf_recipes.cli.flags import require_recipe
from hf_recipes.core.errors import UserError
from hf_recipes.core.printable import printable

HELP = """Read, clean, tokenise, split and mix a recipe's data ahead of the run, which then finds it on disk.
Interrupted, it goes on where it was. Any recipe key can be given as --key value.

Over several machines: run `hf-recipes prepare --config R --data_cache_dir SHARED --shard I/N` for I = 0 … N-1
anywhere, in any order, then once without --shard to put the shards together.
"""
TAKES_RECIPE_KEYS = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--shard``, ``--json``."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("--shard", metavar="I/N", help="do every N-th block, beginning with the I-th, from 0 to N-1")
    parser.add_argument("--json", action="store_true", help="print the account of the data as JSON")


def run(options: argparse.Namespace) -> int:
    """Prepare the data and print its account."""
    require_recipe(options.config)
    shard = parse_shard(options.shard) if options.shard is not None else None
    from hf_recipes.data.check import check_sources
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.classifier_recipe import check_no_classifier

    recipe = load_recipe(options.config, options.recipe_keys)
    if recipe.get("streaming"):
        raise UserError("streaming: true prepares while it trains, so there is nothing to do ahead: remove the key.")
    check_sources(recipe.values["datasets"], recipe.get("bad_rows", "drop"))
    check_no_classifier(recipe, "prepare")

    from hf_recipes.data.prepare import prepare_data, prepare_shard
    from hf_recipes.data.report import report_table
    from hf_recipes.data.settings import data_settings
    from hf_recipes.models.tokenizer import load_recipe_tokenizer

    tokenizer = load_recipe_tokenizer(recipe.values)
    if shard is not None:
        prepare_shard(recipe.values["datasets"], tokenizer, shard, **data_settings(recipe.values))
        print(f"Shard {options.shard} is prepared; run prepare without --shard once all are.")
        return 0
    data = prepare_data(recipe.values["datasets"], tokenizer, **data_settings(recipe.values))
    print(
        json.dumps(data.report, ensure_ascii=False, indent=2) if options.json else printable(report_table(data.report))
    )
    return 0


def parse_shard(text: str) -> tuple[int, int]:
    """``I/N`` as (index, count); raises `UserError` unless 0 ≤ I < N."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", text)
    if not found or not int(found[1]) < int(found[2]):
        raise UserError(f"--shard: '{text}' is not a shard: write I/N with I from 0 to N-1, such as 0/8.")
    return int(found[1]), int(found[2])
