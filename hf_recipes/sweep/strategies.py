"""What a trial's strategy makes of its processes."""

from __future__ import annotations

from hf_recipes.plan.strategy.names import layout_of
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.strategy_file import recipe_sizes

_ROWS_SHARED = ("tp", "cp", "pp")  # strategies in which several ranks see the same rows


def data_parallel_ranks(recipe: Recipe, processes: int) -> int:
    """How many of a run's processes see different rows.

    Raises:
        UserError: the strategy's groups do not divide the processes.
    """
    strategy = recipe.get("strategy", "auto")
    if strategy not in _ROWS_SHARED:
        return processes
    return max(1, layout_of(strategy, processes, 1, recipe_sizes(recipe.values)).data_parallel)
