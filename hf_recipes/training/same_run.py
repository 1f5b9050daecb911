"""A resumed run must train the model its checkpoint holds: what decides that is compared, in the recipe's words, before
anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.recipe.key_table import load_key_table
from hf_recipes.recipe.keys import KEYS_OF_METHODS
from hf_recipes.recipe.resolve import Recipe

# Of the keys that belong to a method, those that may change from one attempt to the next.
_FREE = ("lora_dropout", "adapter_dropout")
# What the optimizer, its schedule and the Trainer's state restore from the checkpoint, whatever the recipe says now.
RESTORED = (
    *("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("logging_steps", "eval_steps", "save_steps"),
)


def check_same_model(recipe: Recipe, checkpoint: Path | None) -> None:
    """Compare the recipe with that of the run the checkpoint belongs to (its run.json); nothing without one.

    Raises:
        UserError: another base, method, or setting of the method.
    """
    if checkpoint is None:
        return
    before = record_of_run(checkpoint.parent).get("recipe")
    if before is None:
        if (file := RunDirectory(checkpoint.parent).run_json).is_file():
            logger.warning("%s is damaged: what this run was before is not known, nothing is compared with it.", file)
        return
    method = recipe.get("method", "lora")
    keys = ["method", "model_name_or_path"]
    keys += [key for key, methods in KEYS_OF_METHODS.items() if method in methods and key not in _FREE]
    defaults = load_key_table()
    for key in keys:
        then, now = (_value(values, key, defaults[key].default) for values in (before, recipe.values))
        if then != now:
            raise UserError(
                f"'{checkpoint}' was trained with {key} {then}, the recipe says {now}: set {key} back, or start anew "
                "with another output_dir."
            )


def record_of_run(directory: Path) -> dict[str, Any]:
    """What a run directory's run.json holds; nothing where there is none, or none that can be read."""
    try:
        record = read_json(RunDirectory(directory).run_json)
        return dict(record) if isinstance(record["recipe"], dict) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def tell_other_data(run: RunDirectory, report: Mapping[str, Any]) -> None:
    """Warn where a run that is resumed gets other rows than its earlier attempt, whose data.json is there still."""
    try:
        before = read_json(run.data_json)["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    if before != report["fingerprint"]:
        logger.warning(
            "The data are not those this run has trained on so far (other files, content or settings): it goes on at "
            "the same place of another order, so some rows may come twice in this epoch and some not at all."
        )


def _value(values: dict[str, Any], key: str, default: Any) -> Any:
    """A key's value; nothing, an empty list and an absent key alike, lists in any order."""
    value = values.get(key)
    value = default if value is None else value
    return sorted(value, key=str) if isinstance(value, list) else value or None
