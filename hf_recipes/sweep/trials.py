"""Points → trials: the keys of each, its recipe checked as `hf-recipes sft` checks one, before the first begins."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.callbacks.config import WatchConfig
from hf_recipes.core.errors import UserError
from hf_recipes.data.check import check_sources
from hf_recipes.models.precision import Hardware
from hf_recipes.recipe.defaults import recipe_defaults
from hf_recipes.recipe.resolve import Recipe, load_recipe
from hf_recipes.sweep.axes import BATCH, PRECISION, short, show
from hf_recipes.sweep.batch import global_batch, precision_keys
from hf_recipes.sweep.points import Point, identity, trial_name
from hf_recipes.sweep.strategies import data_parallel_ranks
from hf_recipes.training.arguments import recipe_precision
from hf_recipes.training.method_limits import check_method
from hf_recipes.training.preemption_keys import check_preemption_keys
from hf_recipes.training.strategy_check import check_strategy

METHOD, RATE = "method", "learning_rate"
_MICRO = "per_device_train_batch_size"
# Without them, trials are alike to the overfit test.
_NOT_TESTED = ("seed", _MICRO, "gradient_accumulation_steps", "num_train_epochs", "max_steps")


@dataclass(frozen=True)
class Trial:
    """One run to be: its `point`, the recipe keys that it gives, and the recipe that they make.

    `impossible` says why this machine cannot run it.
    """

    name: str
    point: Point
    keys: dict[str, Any]
    recipe: Recipe
    impossible: str | None = None

    def told(self) -> str:
        """The point in words: ``lr 2e-05, batch 16``."""
        return told_point(self.point) or "the recipe as it is"


def told_point(point: Mapping[str, Any]) -> str:
    """A point in words."""
    return ", ".join(f"{short(key)} {show(value)}" for key, value in point.items())


def make_trials(
    config: str,
    fixed: Mapping[str, Any],
    points: Sequence[Point],
    processes: int,
    hardware: Hardware | None,
    *,
    own_launch: bool = True,
) -> list[Trial]:
    """A trial for each point, each key of each checked.

    Args:
        config: a recipe file, or the name of a shipped one.
        fixed: keys of the command line that are the same for all.
        points: what to try.
        processes: of a run, on this machine.
        hardware: a `Hardware`, to leave out precisions that it has not; None where no trial asks for one.
        own_launch: whether the strategy decides how the processes share the work, and not an accelerate config file.

    Raises:
        UserError: a key of a trial is wrong; the sentence names the trial's values.
    """
    trials: dict[str, Trial] = {}
    checked: set[str] = set()
    for point in points:
        try:
            trial = _make(config, fixed, point, processes, hardware)
            _check_data(trial.recipe, checked)
            if own_launch and not trial.impossible:
                check_strategy(trial.recipe, processes)
        except UserError as error:
            raise UserError(f"{told_point(point)}: {error}" if len(points) > 1 else str(error)) from None
        trials.setdefault(trial.recipe.fingerprint() + str(trial.impossible), trial)
    return list(trials.values())


def _make(config: str, fixed: Mapping[str, Any], point: Point, processes: int, hardware: Hardware | None) -> Trial:
    given = {**fixed, **point}
    keys = {key: value for key, value in given.items() if key not in (BATCH, PRECISION)}
    if PRECISION in given:
        keys |= precision_keys(given[PRECISION])
    if METHOD in point and RATE not in keys and (rate := rate_of_method(config, point[METHOD])) is not None:
        keys[RATE] = rate
    recipe = load_recipe(config, arguments(keys))
    if BATCH in given:
        keys |= global_batch(given[BATCH], data_parallel_ranks(recipe, processes), int(recipe.get(_MICRO, 8)))
        recipe = load_recipe(config, arguments(keys))
    WatchConfig.from_dict(recipe.get("watch"))
    check_preemption_keys(recipe)
    return Trial(trial_name(point) or "recipe", point, keys, recipe, _why_impossible(recipe, point, hardware))


def _check_data(recipe: Recipe, checked: set[str]) -> None:
    """Look into the sources of a recipe that are not yet in `checked`."""
    mark = json.dumps([recipe.values["datasets"], recipe.get("bad_rows")], sort_keys=True, default=str)
    if mark not in checked:
        check_sources(recipe.values["datasets"], recipe.get("bad_rows", "drop"))
        checked.add(mark)


def rate_of_method(config: str, method: str) -> float | None:
    """The learning rate that a method begins with, where the recipe's is meant for another method; None where the
    recipe's own holds."""
    recipe = load_recipe(config)
    if RATE not in recipe.given or method == recipe.get(METHOD, "lora"):
        return None
    default, own = recipe_defaults(method)[RATE], recipe_defaults(recipe.get(METHOD, "lora"))[RATE]
    return None if default == own else float(default)


def _why_impossible(recipe: Recipe, point: Point, hardware: Hardware | None) -> str | None:
    """What `sft` would refuse of a method or a precision that was swept over, and bf16 that a processor would only
    imitate."""
    try:
        if METHOD in point:
            check_method(recipe)
        if hardware is None:
            return None
        recipe_precision(recipe, hardware)
    except UserError as error:
        return str(error)
    if point.get(PRECISION) == "bf16" and not hardware.bf16:
        return (
            f"this {hardware.device} has no bf16 arithmetic (it would be emulated, many times slower): --bf16 true "
            "--dtype bf16 runs it all the same"
        )
    return None


def arguments(keys: Mapping[str, Any]) -> list[str]:
    """Keys as a command line, in a form that reads back to the same values."""
    return [f"--{key}={json.dumps(value, default=str)}" for key, value in keys.items()]


def needs_overfit_check(trials: Sequence[Trial], index: int) -> bool:
    """Whether no trial before this one trains the same, but for its seed, batch and length; and the learning rate,
    which the test judges too, is not what is swept over."""
    if RATE in trials[index].point:
        return False
    mark = _tested(trials[index])
    return all(_tested(trial) != mark or trial.impossible for trial in trials[:index])


def _tested(trial: Trial) -> str:
    return identity({key: value for key, value in trial.keys.items() if key not in _NOT_TESTED})
