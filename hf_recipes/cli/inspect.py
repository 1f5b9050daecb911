"""`hf-recipes inspect`: what a recipe really trains on."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hf_recipes.cli.flags import require_recipe
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger

if TYPE_CHECKING:
    from datasets import Dataset

    from hf_recipes.data.batching.packing import Bins
    from hf_recipes.data.inspection.facts import Inspection
    from hf_recipes.recipe.resolve import Recipe

HELP = """Show what a recipe trains on, as a run would: the account of every source, shares, lengths, what answers begin
and end with, whether rows survive the way to tokens and back, and the first batches of the run as text with the learned
part marked («…», or green on a terminal). Verdicts come last; exit code 1 when something is wrong enough to stop.
Any recipe key can be given as --key value.
"""
TAKES_RECIPE_KEYS = True
BATCHES_ON_SCREEN, BATCHES_ON_PAGE = 5, 25


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--batches``, ``--html``, ``--json``."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument(
        "--batches",
        type=int,
        metavar="N",
        help=f"batches to decode (default {BATCHES_ON_SCREEN}, with --html {BATCHES_ON_PAGE})",
    )
    parser.add_argument(
        "--html", metavar="FILE", help="write a page that can be searched, and no batches on the screen"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")


def run(options: argparse.Namespace) -> int:
    """Prepare the data as a run would, look at it, and show it; 1 when a verdict says stop."""
    require_recipe(options.config)
    batches = options.batches
    if batches is None:
        batches = BATCHES_ON_PAGE if options.html else BATCHES_ON_SCREEN
    if batches < 0:
        raise UserError(f"--batches: {batches} is not a number of batches: give 0 or more.")
    page = _page_path(options.html)
    from hf_recipes.cli.launching import check_evaluation
    from hf_recipes.data.check import check_sources
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.classifier_recipe import check_no_classifier

    recipe = load_recipe(options.config, options.recipe_keys)
    check_sources(recipe.values["datasets"], recipe.get("bad_rows", "drop"))
    check_no_classifier(recipe, "inspect")
    check_evaluation(recipe)
    inspection = inspect_recipe(recipe, batches)
    if page is not None:
        _write_page(page, inspection)
    print(_text(inspection, options))
    return 1 if inspection.stops else 0


def _page_path(name: str | None) -> Path | None:
    """Where the page goes, checked before the work is done."""
    if name is None:
        return None
    path = Path(name)
    if path.is_dir():
        raise UserError(f"--html: '{name}' is a directory: name a file in it.")
    if not path.parent.is_dir():
        raise UserError(f"--html: there is no directory '{path.parent}' to write the page into: make it first.")
    return path


def inspect_recipe(recipe: Recipe, batches: int = BATCHES_ON_SCREEN) -> Inspection:
    """Prepare a recipe's data and look at it; `batches` are decoded."""
    from hf_recipes.data.inspection.inspection import inspect_data
    from hf_recipes.data.inspection.loader import LoaderSettings
    from hf_recipes.data.inspection.round_trip import first_examples, round_trip
    from hf_recipes.data.masking.masks import Encoder
    from hf_recipes.data.prepare import prepare_data
    from hf_recipes.data.settings import data_settings
    from hf_recipes.models.tokenizer import load_recipe_tokenizer
    from hf_recipes.training.suite_rows import recipe_suite, tell_trained_rows

    loader = LoaderSettings.from_recipe(recipe.values)
    tokenizer = load_recipe_tokenizer(recipe.values)
    datasets = recipe.values["datasets"]
    if recipe.get("streaming"):
        logger.warning(
            "streaming: true: what is shown is prepared as a whole; the run holds out other rows, in another order."
        )
    data = prepare_data(datasets, tokenizer, **data_settings(recipe.values))
    tell_trained_rows(recipe_suite(recipe.values), data)
    encoder = Encoder(tokenizer, recipe.get("assistant_only_loss", True), recipe.get("mask_history", False))
    return inspect_data(
        data,
        tokenizer,
        loader=loader,
        bins=_bins(data.train, recipe),
        batches=batches,
        round_trips=[round_trip(label, examples, encoder) for label, examples in first_examples(datasets)],
        recipe=recipe.name,
        model=recipe.values["model_name_or_path"],
    )


def _bins(samples: Dataset, recipe: Recipe) -> Bins | None:
    """Which samples share a row where the recipe packs them."""
    from hf_recipes.data.batching.packing import pack, sample_lengths

    if not recipe.get("packing"):
        return None
    return pack(sample_lengths(samples), recipe.get("max_length", 1024), recipe.get("seed", 42))


def _write_page(path: Path, inspection: Inspection) -> None:
    from hf_recipes.core.files import write_text
    from hf_recipes.core.log import logger
    from hf_recipes.data.inspection.page import render_page

    write_text(path, render_page(inspection))
    logger.info("Page: %s", path)


def _text(inspection: Inspection, options: argparse.Namespace) -> str:
    from hf_recipes.core.files import json_safe
    from hf_recipes.data.inspection.terminal import render_terminal

    if options.json:
        return json.dumps(json_safe(inspection.as_dict()), ensure_ascii=False, indent=2, allow_nan=False)
    return render_terminal(inspection, color=_wants_color(), samples=not options.html)


def _wants_color() -> bool:
    """Colour on a terminal, unless NO_COLOR (no-color.org) or a dumb terminal forbids it."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
