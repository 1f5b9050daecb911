"""What only the ranks would refuse of a recipe's strategy, after their imports and in a run directory."""

from __future__ import annotations

from hf_recipes.pipeline.cut import check_micro_batches
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.names import check_sizes, layout_of
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.launch import has_accelerator
from hf_recipes.training.parallel_defaults import check_device
from hf_recipes.training.pipelined_keys import check_pipeline_keys
from hf_recipes.training.strategy_file import recipe_sizes


def check_layout(recipe: Recipe, layout: Layout, devices: int) -> None:
    """Raise `UserError` where the strategy cannot run on the job's machines.

    Args:
        recipe: with its micro-batches.
        layout: of its strategy on all ranks.
        devices: accelerators of a machine; 0 trains on CPUs.
    """
    check_device(layout, "accelerator" if devices else "cpu")
    if layout.pipeline > 1:
        steps = int(recipe.get("gradient_accumulation_steps", 1))
        check_micro_batches(str(recipe.get("pipeline_schedule", "1f1b")), steps, layout.pipeline)


def check_strategy(recipe: Recipe, ranks: int, nodes: int = 1) -> None:
    """Raise `UserError` where the recipe's strategy cannot run on so many ranks of machines like this one."""
    strategy, sizes = recipe.get("strategy", "auto"), recipe_sizes(recipe.values)
    check_sizes(strategy, sizes)
    if strategy == "auto":
        return
    if strategy == "pp":
        check_pipeline_keys(recipe)
    check_layout(recipe, layout_of(strategy, ranks, nodes, sizes), int(has_accelerator()))
