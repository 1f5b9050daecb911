"""The range test's run: a recipe set up as `train` does, its learning rate raised at every step, nothing kept."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, TrainerCallback

from hf_recipes.checkpoints.preemption.guard import PreemptionGuard
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import json_safe, write_json
from hf_recipes.core.log import logger
from hf_recipes.data.check import check_sources
from hf_recipes.recipe.key_table import load_key_table
from hf_recipes.recipe.resolve import Recipe, load_recipe
from hf_recipes.sweep.axes import BATCH, PRECISION, read_axes
from hf_recipes.sweep.batch import global_batch
from hf_recipes.sweep.picture import draw_range
from hf_recipes.sweep.range_test import Suggestion, has_exploded, rate_at, suggest
from hf_recipes.sweep.trials import arguments
from hf_recipes.training.build_run import build_run
from hf_recipes.training.environment import use_all_cores
from hf_recipes.training.setup import set_up

NAME = "lr_range.json"
# What a whole run does, and a rising rate makes pointless, or an alarm of.
_WATCH_OFF = {
    "non_finite": "off",
    "loss": False,
    "schedule": False,
    "grad_norm": False,
    "samples": 0,
    "live_report": False,
    "throughput": False,
}


def range_test(
    config: str,
    keys: Sequence[str],
    low: float,
    high: float,
    steps: int,
    directory: Path | None = None,
    *,
    ranks: int | None = None,
) -> dict[str, Any]:
    """Train a recipe for some steps at a rate that rises from `low` to `high` in equal factors (Smith 2017, arXiv
    1506.01186, section 3.3), and suggest one; the model is thrown away.

    Args:
        config: a recipe file, or the name of a shipped one.
        keys: recipe keys of the command line, one value each.
        low, high: learning rates.
        steps: optimizer steps; fewer where the loss explodes before.
        directory: for lr_range.json and lr_range.png; by default ``sweeps/NAME-lr_range``.
        ranks: of the run that the rate is for; this one runs in this process alone, with as large a global batch.

    Returns:
        What lr_range.json holds, and ``told``, a sentence or two.

    Raises:
        UserError: wrong use, as `train` raises it.
        CheckFailed: nothing is trainable.
    """
    recipe = _recipe(config, keys, ranks)
    directory = directory or Path("sweeps") / f"{recipe.name}-lr_range"
    if directory.is_file() or (directory.is_dir() and any(directory.iterdir()) and not (directory / NAME).is_file()):
        raise UserError(f"--output_dir: '{directory}' holds something else than a range test: name a new directory.")
    _tell_settings(recipe)
    use_all_cores()
    with tempfile.TemporaryDirectory(prefix="hf_recipes_lr_range_") as scratch:
        setup = set_up(_short(recipe, steps, low, scratch))
        trainer = build_run(setup).trainer
        trainer.remove_callback(PreemptionGuard)  # there is nothing to save
        trainer.remove_callback(PrinterCallback)  # it prints the schedule's rate, which is not what is set
        rising = RisingRate(low, high, steps)
        trainer.add_callback(rising)
        trainer.train()
    found = suggest(rising.rates, rising.losses)
    values = {
        "schema": 1,
        "recipe": recipe.name,
        "low": low,
        "high": high,
        "steps": steps,
        "stopped_early": rising.exploded,
        "suggestion": asdict(found),
        "rates": rising.rates,
        "losses": rising.losses,
    }
    directory.mkdir(parents=True, exist_ok=True)
    write_json(directory / NAME, values)
    draw_range(rising.rates, rising.losses, found, directory / "lr_range.png")
    safe = json_safe({**values, "told": told(found, rising, directory)})
    assert isinstance(safe, dict)
    return safe


class RisingRate(TrainerCallback):
    """Sets the learning rate before every step, in all parameter groups by the same factor, and keeps the losses; stops
    the training when going on is of no use.

    Attributes:
        rates, losses: of each step done.
        exploded: whether it stopped before the end.
    """

    def __init__(self, low: float, high: float, steps: int) -> None:
        self.low, self.high, self.steps = low, high, steps
        self.rates: list[float] = []
        self.losses: list[float] = []
        self.exploded = False
        self._factors: list[float] = []
        self._rate = low

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Groups keep their ratio to the first (LoRA+ has a higher rate for B)."""
        groups = kwargs["optimizer"].param_groups
        self._factors = [group.get("initial_lr", group["lr"]) / args.learning_rate for group in groups]

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._rate = rate_at(state.global_step, self.steps, self.low, self.high)
        for group, factor in zip(kwargs["optimizer"].param_groups, self._factors, strict=True):
            group["lr"] = self._rate * factor

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        loss = kwargs["logs"].get("loss")
        if loss is None:
            return
        self.rates.append(self._rate)
        self.losses.append(float(loss))
        if len(self.losses) % max(1, self.steps // 10) == 0:
            logger.info("Step %d of %d: rate %.2g, loss %.4g", len(self.losses), self.steps, self._rate, float(loss))
        if not self.exploded and has_exploded(self.losses):
            self.exploded = True
            control.should_training_stop = True


def told(found: Suggestion, rising: RisingRate, directory: Path) -> str:
    """The result in words."""
    way = f"{len(rising.losses)} steps, {rising.rates[0]:.2g} to {rising.rates[-1]:.2g}"
    end = ", stopped there since the loss exploded" if rising.exploded else ""
    value = "No learning rate is suggested." if found.learning_rate is None else f"Try --lr {found.learning_rate:g}:"
    if len(found.to_compare) > 1:
        rates = ",".join(f"{rate:g}" for rate in found.to_compare)
        way = f"A run's length decides too: compare with hf-recipes sweep --lr {rates}\n{way}"
    return f"{value} {found.reason}.\n{way}{end}. Picture: {directory / 'lr_range.png'}".replace("..\n", ".\n")


def _recipe(config: str, keys: Sequence[str], ranks: int | None) -> Recipe:
    axes, fixed = read_axes(keys, load_key_table())
    if axes:
        raise UserError(f"--{axes[0].key} has several values, and --lr_range is one run: give one.")
    if "learning_rate" in fixed:
        raise UserError("--learning_rate is what --lr_range looks for: leave it out.")
    if PRECISION in fixed:
        raise UserError("--precision compares trials: write --dtype or --bf16 here.")
    batch = fixed.pop(BATCH, None)
    recipe = load_recipe(config, arguments(fixed))
    check_sources(recipe.values["datasets"], recipe.get("bad_rows", "drop"))
    micro = int(recipe.get("per_device_train_batch_size", 8))
    of_all = int(ranks or recipe.get("num_processes") or 1)
    rows = batch or micro * int(recipe.get("gradient_accumulation_steps", 1)) * of_all
    return recipe.with_values(**global_batch(rows, 1, micro))


def _tell_settings(recipe: Recipe) -> None:
    watch = [name for name, value in (recipe.get("watch") or {}).items() if name in _WATCH_OFF and value]
    also = f" ({', '.join(watch)} of the recipe too)" if watch else ""
    logger.info(
        "The range test runs in one process; watchers that a rising rate would set off are off%s, as are evaluation, "
        "saving and the schedule.",
        also,
    )


def _short(recipe: Recipe, steps: int, low: float, scratch: str) -> Recipe:
    watch = {**(recipe.get("watch") or {}), **_WATCH_OFF}
    values: dict[str, Any] = {
        "learning_rate": low,
        "lr_scheduler_type": "constant",
        "lr_scheduler_kwargs": None,
        "warmup_steps": 0,
        "max_steps": steps,
        "output_dir": scratch,
        "eval_strategy": "no",
        "eval_on_start": False,
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "resume_from_checkpoint": None,
        "logging_steps": 1,
        "logging_strategy": "steps",
        "logging_first_step": False,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "disable_tqdm": True,
        "num_processes": None,
        "on_finish": None,
        "watch": watch,
    }
    if "overfit_check" in load_key_table():
        values["overfit_check"] = "off"
    return recipe.with_values(**values)
