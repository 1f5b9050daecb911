"""The recipe keys about being stopped, checked before anything starts; without torch and transformers."""

from __future__ import annotations

from hf_recipes.checkpoints.preemption.deadline import seconds_of
from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import Recipe

_LENGTHS_OF_TIME = ("preemption_grace_seconds", "preemption_poll_seconds")


def check_preemption_keys(recipe: Recipe) -> None:
    """Raise `UserError` where `time_limit` or another length of time is none."""
    for key in _LENGTHS_OF_TIME:
        value = recipe.values.get(key)
        if value is not None and not value > 0:
            raise UserError(f"{key}: {value} is no length of time: give seconds above 0.")
    if (limit := recipe.get("time_limit")) is not None:
        seconds_of(str(limit))
