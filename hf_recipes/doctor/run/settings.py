"""What a run was set to, as far as its folder or log tells: what advice is relative to."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_recipes.callbacks.advice import RunFacts


@dataclass(frozen=True)
class Settings:
    """Recipe keys under their names; None where they are not known.

    `full` is whether all weights are trained, `warm_up_steps` in updates, `max_steps` the run's planned updates.
    """

    learning_rate: float | None = None
    max_grad_norm: float | None = None
    full: bool | None = None
    fp16: bool = False
    warm_up_steps: int | None = None
    max_steps: int | None = None
    lora_r: int | None = None
    lora_dropout: float | None = None
    weight_decay: float | None = None
    evaluates: bool = True

    def facts(self, peak_rate: float | None) -> RunFacts | None:
        """For the advice of the watchers; None where not even the rate is known.

        Args:
            peak_rate: the highest learning rate in the logs, taken where the recipe is not known.
        """
        rate = self.learning_rate if self.learning_rate is not None else peak_rate
        if rate is None or rate <= 0:
            return None
        clip = 1.0 if self.max_grad_norm is None else self.max_grad_norm
        return RunFacts(rate, clip, bool(self.full), self.fp16)


def settings_of_recipe(recipe: Mapping[str, Any], precision: Mapping[str, Any], max_steps: int | None) -> Settings:
    """From a resolved recipe and run.json's ``precision``; values of another type than expected are not known."""
    method = recipe.get("method")
    warm_up = _number(recipe.get("warmup_steps"))
    if warm_up is not None and warm_up < 1 and max_steps:
        warm_up = float(round(warm_up * max_steps))
    return Settings(
        learning_rate=_number(recipe.get("learning_rate")),
        max_grad_norm=_number(recipe.get("max_grad_norm")),
        full=method in ("full", "partial") if method else None,
        fp16=bool(precision.get("fp16")),
        warm_up_steps=None if warm_up is None else int(warm_up),
        max_steps=max_steps,
        lora_r=_whole(recipe.get("lora_r")),
        lora_dropout=_number(recipe.get("lora_dropout")),
        weight_decay=_number(recipe.get("weight_decay")),
        evaluates=str(recipe.get("eval_strategy", "no")) != "no",
    )


def _number(value: Any) -> float | None:
    """A finite number within what floats hold; None else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def _whole(value: Any) -> int | None:
    number = _number(value)
    return None if number is None else int(number)
