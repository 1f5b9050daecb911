"""What a sweep says on its way: what it will run, how long that takes, how each trial ended."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hf_recipes.core.log import logger
from hf_recipes.sweep.order import Order
from hf_recipes.sweep.outcome import Outcome
from hf_recipes.sweep.trials import RATE, Trial


def tell_plan(order: Order, trials: Sequence[Trial], states: Sequence[str], left: int, others: int) -> None:
    """How many trials there are, of which `left` are to run, and what is left out.

    Args:
        order: What was asked for.
        trials: Of this call.
        states: What came of each so far.
        left: How many of them are to run.
        others: Trials of other calls in the same table.
    """
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    logger.info("%d trials in %s (%s), %d to run.", len(trials), order.directory, counts, left)
    if others > 0:
        logger.info("Trials of other calls that are in the table too: %d.", others)
    for trial in trials:
        if trial.impossible:
            logger.warning("Left out: %s: %s", trial.told(), trial.impossible)
    if order.base.get("on_finish"):
        logger.info("on_finish runs once, after the sweep, not after each trial.")
    _tell_overfit_check(trials, left)


def _tell_overfit_check(trials: Sequence[Trial], left: int) -> None:
    if not left or any("overfit_check" in trial.keys for trial in trials):
        return
    if any(RATE in trial.point for trial in trials):
        logger.info("overfit_check is off: it judges the learning rate too; `hf-recipes overfit` tests a recipe.")
    elif left > 1:
        logger.info("overfit_check is off for trials that are like one before but for seed, batch and length.")


def tell_time(seconds_each: Sequence[float], left: int) -> None:
    """How long the trials that are left will take, by those that ended."""
    if left and seconds_each:
        seconds = sum(seconds_each) / len(seconds_each) * left
        logger.info("About %.0f min for the %d trials that are left.", seconds / 60, left)


def tell_end(where: str, found: Outcome, metric: str, seconds: float, log: Path) -> None:
    """How a trial ended."""
    if found.state == "ok":
        value = "none" if found.target is None else f"{found.target:.4g}"
        logger.info("%s %s %s, %.0f s", where, metric, value, seconds)
    else:
        see = "" if found.state == "pruned" else f" (see {log})"
        logger.warning("%s %s: %s%s", where, found.state, found.sentence or "it left no word", see)
