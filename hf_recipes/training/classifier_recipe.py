"""Whether a recipe is of a classifier, which no verb for language models should take for text to be learned."""

from __future__ import annotations

from hf_recipes.core.errors import UserError
from hf_recipes.data.classification import are_labelled_texts
from hf_recipes.data.reading.sources import as_specs, find_files
from hf_recipes.recipe.resolve import Recipe


def check_no_classifier(recipe: Recipe, verb: str) -> None:
    """Refuse a recipe of `hf-recipes classify`: it has that verb's key, or no source names a format and the first rows
    of all are texts with a label (on the Hub: their columns are named so).

    Args:
        recipe: whose local sources can be read.
        verb: that was asked to take it.

    Raises:
        UserError: what to do, for one who means a classifier and one who does not.
    """
    if way_out := _way_out(recipe):
        raise UserError(
            f"Recipe '{recipe.name}' trains a classifier, and {verb} is for language models: take `hf-recipes "
            f"classify`; {way_out}."
        )


def _way_out(recipe: Recipe) -> str:
    """What to change where no classifier is meant; empty where nothing speaks for one."""
    if "max_label_share" in recipe.given:
        return "max_label_share is its key, remove it where none is meant"
    specs = as_specs(recipe.values["datasets"])
    if any(spec.format != "auto" or (find_files(spec) is None and "label" not in spec.columns) for spec in specs):
        return ""
    if not are_labelled_texts([spec for spec in specs if find_files(spec) is not None]):
        return ""
    return "its rows have text and label, and to train on the text alone write format: text into its datasets"
