"""`hf-recipes overfit`: can this recipe learn a handful of its own rows by heart; if not, what is broken."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from hf_recipes.cli.flags import refuse_misspelt_flags, require_recipe

if TYPE_CHECKING:
    from hf_recipes.recipe.resolve import Recipe
    from hf_recipes.training.overfit.check import OverfitResult

HELP = """Let a recipe's model learn a handful of the recipe's own rows by heart, in seconds, and say whether it can;
where it cannot, or the rows are not what they should be, say which it is: data (labels, answers, template, padding),
learning rate, nothing trainable, or precision. `hf-recipes sft` does the same before it trains (overfit_check: 100, or
off to go without).

Nothing is kept. Any recipe key can be given as --key value; overfit_check is the number of rows drawn. Exit code 1 when
something is broken.
"""
TAKES_RECIPE_KEYS = True
FLAGS = ("config", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--json``."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")


def run(options: argparse.Namespace) -> int:
    """Test the recipe and print what was found; 1 where something is broken."""
    refuse_misspelt_flags("overfit", FLAGS, options.recipe_keys)
    require_recipe(options.config)
    from hf_recipes.data.check import check_sources
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.classifier_recipe import check_no_classifier

    recipe = load_recipe(options.config, options.recipe_keys)
    check_sources(recipe.values["datasets"], recipe.get("bad_rows", "drop"))
    check_no_classifier(recipe, "overfit")
    with tempfile.TemporaryDirectory(prefix="hf_recipes_overfit_") as scratch, redirect_stdout(sys.stderr):
        result = overfit_recipe(recipe, scratch)
    print(_as_json(result) if options.json else _as_text(result))
    return 0 if result.ok else 1


def overfit_recipe(recipe: Recipe, directory: str) -> OverfitResult:
    """Set a recipe up as `train` does, in this process alone, and test it; `directory` is for what a run writes.

    Raises:
        UserError: wrong use, as `train` raises it.
    """
    from hf_recipes.training.launch import has_accelerator

    if not has_accelerator():
        import os

        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from hf_recipes.training.build_run import build_run
    from hf_recipes.training.environment import use_all_cores
    from hf_recipes.training.overfit.before_run import run_overfit_test, wanted_samples
    from hf_recipes.training.overfit.check import SAMPLES
    from hf_recipes.training.setup import set_up

    use_all_cores()
    alone = recipe.with_values(
        output_dir=directory,
        num_processes=None,
        strategy="single",
        tensor_parallel_size=None,
        context_parallel_size=None,
        pipeline_parallel_size=None,
        resume_from_checkpoint=None,
        report_to="none",
        disable_tqdm=True,
    )
    built = build_run(set_up(alone))
    return run_overfit_test(built, wanted_samples(recipe.values.get("overfit_check", True)) or SAMPLES)


def _as_json(result: OverfitResult) -> str:
    from hf_recipes.core.files import json_safe

    return json.dumps(json_safe(result.as_dict()), ensure_ascii=False, indent=2, allow_nan=False)


def _as_text(result: OverfitResult) -> str:
    details = result.details()
    width = max(len(name) for name, _ in details)
    return "\n".join([*(f"{name.ljust(width)}  {value}" for name, value in details), "", str(result)])
