"""What a trial's strategy makes of its processes, and whether it can start at all."""

from __future__ import annotations

from hf_recipes.pipeline.cut import check_micro_batches
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.names import check_sizes, layout_of
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.launch import has_accelerator
from hf_recipes.training.parallel_defaults import check_device
from hf_recipes.training.pipelined_keys import check_pipeline_keys
from hf_recipes.training.strategy_file import recipe_sizes

_ROWS_SHARED = ("tp", "cp", "pp")  # strategies in which several ranks see the same rows


def data_parallel_ranks(recipe: Recipe, processes: int) -> int:
    """How many of a run's processes see different rows.

    Raises:
        UserError: the strategy's groups do not divide the processes.
    """
    if recipe.get("strategy", "auto") not in _ROWS_SHARED:
        return processes
    return max(1, _layout(recipe, processes).data_parallel)


def check_strategy(recipe: Recipe, processes: int) -> None:
    """Raise `UserError` where `hf-recipes sft` would refuse the recipe's strategy on so many processes."""
    strategy = recipe.get("strategy", "auto")
    check_sizes(strategy, recipe_sizes(recipe.values))
    if strategy == "auto":
        return
    if strategy == "pp":
        check_pipeline_keys(recipe)
    layout = _layout(recipe, processes)
    check_device(layout, "accelerator" if has_accelerator() else "cpu")
    if layout.pipeline > 1:
        steps = int(recipe.get("gradient_accumulation_steps", 1))
        check_micro_batches(str(recipe.get("pipeline_schedule", "1f1b")), steps, layout.pipeline)


def _layout(recipe: Recipe, processes: int) -> Layout:
    return layout_of(recipe.get("strategy", "auto"), processes, 1, recipe_sizes(recipe.values))
