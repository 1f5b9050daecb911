"""What a job would be refused for on its first start, asked before its files are written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError

if TYPE_CHECKING:
    from hf_recipes.recipe.resolve import Recipe


def check_recipe(recipe: Recipe, verb: str) -> None:
    """Raise `UserError` where the verb would not take the recipe, as far as this machine can tell."""
    from hf_recipes.callbacks.config import WatchConfig
    from hf_recipes.training.pipelined_keys import check_pipeline_keys
    from hf_recipes.training.preemption_keys import check_preemption_keys

    WatchConfig.from_dict(recipe.get("watch"))
    check_preemption_keys(recipe)
    if recipe.get("strategy") == "pp":
        if verb != "sft":
            raise UserError(f"strategy: pp is for --verb sft only, and this is {verb}: take another strategy.")
        check_pipeline_keys(recipe)
    _check_verb(recipe, verb)


def _check_verb(recipe: Recipe, verb: str) -> None:
    """By its key and the rows that are here: Hub datasets, and files that only the nodes have, are left to the run."""
    from hf_recipes.data.classification import are_labelled_texts, check_classification_sources
    from hf_recipes.data.reading.sources import as_specs

    specs = as_specs(recipe.values["datasets"])
    here = [replace(spec, role="domain") for spec in specs if Path(spec.path).exists()]
    if verb == "classify" and here:
        check_classification_sources(here, recipe.get("bad_rows", "drop"))
    if verb == "sft" and ("max_label_share" in recipe.given or (len(here) == len(specs) and are_labelled_texts(here))):
        raise UserError(
            "--verb: the recipe is of a classifier (max_label_share, or rows of text and label): give --verb classify, "
            "or write format: text into its datasets and leave that key out."
        )
