"""What a recipe's steps send and compute, from its plan: what `hf-recipes doctor --network --config` weighs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError
from hf_recipes.doctor.network.options import Chosen
from hf_recipes.doctor.network.traffic import StepFigures
from hf_recipes.plan.strategy.step_cost import StepWork, recomputed, work_of

if TYPE_CHECKING:
    from hf_recipes.plan.settings import TrainingSettings
    from hf_recipes.recipe.resolve import Recipe


def network_choice(recipe: Recipe, ranks: int, machines: int) -> Chosen:
    """The strategy a recipe asks for, or the one that its plan takes, on ranks like this machine's.

    Args:
        recipe: its model's config and its data are read.
        ranks, machines: that the network was measured between.

    Raises:
        UserError: the recipe cannot be planned on so many ranks.
    """
    from hf_recipes.plan.hardware.here import measure_machine
    from hf_recipes.plan.strategy.names import describe, strategy_of
    from hf_recipes.training.planning import PlanOrder, plan_recipe

    devices = measure_machine().devices
    order = PlanOrder(
        accelerators=(devices[0].as_accelerator(),),
        per_node=ranks // machines,
        nodes=machines,
        device="cpu" if devices[0].kind == "cpu" else "cuda",
    )
    plan = plan_recipe(recipe, order)
    taken = plan.devices[0].shown
    name = strategy_of(taken.layout)
    if name is None:
        raise UserError(f"{describe(taken.layout)} is not weighed against a network: give another --strategy.")
    figures = figures_of(work_of(plan.geometry, taken.settings), taken.settings)
    return Chosen(name, figures, taken.cost.compute + taken.cost.recomputation)


def figures_of(work: StepWork, settings: TrainingSettings) -> StepFigures:
    """The plan's figures as the network's."""
    return StepFigures(
        gradient_bytes=work.gradient_bytes,
        wide_gradient_bytes=work.wide_gradient_bytes,
        weight_bytes=work.gathered_bytes,
        bytes_per_value=work.gradient_bytes / max(1, work.trained),
        passes=settings.accumulation,
        layers=work.layers,
        hidden_bytes=2.0 * settings.micro_batch * settings.tokens * work.hidden,
        gathers=2 + recomputed(settings.checkpointing),
    )
