"""What a sweep is asked for, and the trials that this makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.sweep.axes import Axis
from hf_recipes.sweep.book import Book, check_same_sweep, plain_values, read_book
from hf_recipes.sweep.points import Point, grid, one_by_one, random_points
from hf_recipes.sweep.trials import Trial, make_trials


@dataclass(frozen=True)
class Order:
    """What a sweep is asked for.

    Attributes:
        config: a recipe file, or the name of a shipped one.
        base: that recipe with `fixed`, the keys that are the same for all trials.
        axes: what is swept over.
        directory: of the sweep.
        search: ``grid``, ``random`` or ``optuna``.
        trials: how many are drawn, for the latter two.
        seed: of the draws.
        prune: None, ``median``, or ``hyperband`` with Optuna.
        metric: what the trials are sorted by.
        less: whether its lowest value is the best.
        evaluate: whether each trial is evaluated after its training.
        processes: of each trial.
        launch_flags: of `hf-recipes sft`, for each trial.
        own_launch: whether no accelerate config file is among them.
        hardware: a `Hardware` where precisions are to be left out that it has not.
    """

    config: str
    base: Recipe
    fixed: Mapping[str, Any]
    axes: Sequence[Axis]
    directory: Path
    search: str = "grid"
    trials: int | None = None
    seed: int = 42
    prune: str | None = None
    metric: str = "eval_loss"
    less: bool = True
    evaluate: bool = False
    processes: int = 1
    launch_flags: Sequence[str] = ()
    own_launch: bool = True
    hardware: Any = None

    def trials_of(self, points: Sequence[Point]) -> list[Trial]:
        """A trial for each point, checked."""
        return make_trials(self.config, self.fixed, points, self.processes, self.hardware, own_launch=self.own_launch)


def open_book(order: Order) -> Book:
    """The book of the order's directory, or a new one.

    Raises:
        UserError: the directory holds something else, or a sweep of other keys.
    """
    keys = [axis.key for axis in order.axes]
    book = read_book(order.directory)
    if book is None:
        return Book(order.base.name, plain_values(order.base.values), keys, order.metric)
    check_same_sweep(book, order.directory, order.base.name, order.base.values, keys)
    logger.info("Going on in %s, which holds %d trials.", order.directory, len(book.entries))
    book.keys = list(dict.fromkeys([*book.keys, *keys]))
    book.metric = order.metric
    return book


def plan_trials(order: Order) -> list[Trial]:
    """All trials of a grid, or the drawn ones, each checked; for Optuna, which chooses later, none, but each value of
    each key is checked.

    Raises:
        UserError: a key of a trial is wrong.
    """
    if order.search == "optuna":
        order.trials_of(one_by_one(order.axes))
        return []
    if order.search == "random":
        points = random_points(order.axes, order.trials or 0, order.seed)
        seeds = next((len(axis.values) for axis in order.axes if axis.key == "seed"), 1)
        if len(points) < (order.trials or 0) * seeds:
            logger.warning("--trials: there are only %d different points, not %d.", len(points) // seeds, order.trials)
    else:
        points = grid(order.axes)
    return order.trials_of(points)


def recipe_of(order: Order, book: Book) -> Callable[[str], Recipe]:
    """The recipe of a trial by its name, made anew from its point; a `UserError` where that gives another one."""

    def recipe(name: str) -> Recipe:
        entry = book.entries[name]
        (trial,) = replace(order, hardware=None).trials_of([entry.point])
        if trial.recipe.fingerprint() != entry.fingerprint:
            raise UserError(f"the recipe of {name} is not that of this command line; it is in its run.json.")
        return trial.recipe

    return recipe
