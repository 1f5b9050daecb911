"""A recipe's plan, before anything is loaded: what it needs, on which devices it fits and how, how long it takes and
what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hf_recipes.core.accelerators import Accelerator
from hf_recipes.core.errors import UserError
from hf_recipes.pipeline.support import check_decoder
from hf_recipes.plan.cost import Cost, Interruptions, Power, cost_of
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.memory.estimate import MemoryEstimate, estimate_memory
from hf_recipes.plan.prices import Purchase
from hf_recipes.plan.schedule import Schedule, plan_schedule
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.candidates import Wishes
from hf_recipes.plan.strategy.choose import Choice, choose_strategy
from hf_recipes.plan.strategy.machines import Machines
from hf_recipes.plan.strategy.search import Considered
from hf_recipes.plan.time import BetweenSteps, Measured, TimeEstimate, estimate_time
from hf_recipes.plan.utilization import peak_flops
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.pipelined_keys import check_pipeline_keys
from hf_recipes.training.plan_data import DataFacts, data_facts
from hf_recipes.training.plan_job import (
    PlannedRecipe,
    load_config,
    planned_recipe,
    planning_hardware,
    recipe_geometry,
    recipe_settings,
)
from hf_recipes.training.strategy_file import recipe_sizes

# Steps that stand for a run whose length nobody has told: its speed is told, its hours are not.
_UNKNOWN_STEPS = 100


@dataclass(frozen=True)
class PlanOrder:
    """What is to be planned besides the recipe.

    Attributes:
        accelerators: kinds of device; the first is planned for in detail.
        per_node, nodes: how many of them.
        network: bytes a second between machines.
        host_memory_bytes: of a machine; None where it is not known.
        tokens: of an epoch, in place of the recipe's data.
        purchase, price, interruptions, power: for the cost.
        measured: speed of a run of the like.
        device: ``cuda`` or ``cpu``.
    """

    accelerators: tuple[Accelerator, ...]
    per_node: int = 1
    nodes: int = 1
    network: float = 12.5e9
    host_memory_bytes: float | None = None
    tokens: int | None = None
    purchase: Purchase = "on-demand"
    price: float | None = None
    interruptions: Interruptions | None = None
    power: Power | None = None
    measured: Measured | None = None
    device: str = "cuda"


@dataclass(frozen=True)
class DevicePlan:
    """A recipe on one kind of device; `time` and `cost` are None where nothing fits. `headroom` is the share of its
    memory that is kept free."""

    accelerator: Accelerator
    machines: Machines
    settings: TrainingSettings
    choice: Choice
    time: TimeEstimate | None
    cost: Cost | None
    headroom: float

    @property
    def limit_bytes(self) -> float:
        """Memory of one device that a job may take."""
        return self.machines.memory_bytes * (1 - self.headroom)

    @property
    def shown(self) -> Considered:
        """What was chosen, else what needs least."""
        least = min(self.choice.considered, key=lambda one: one.memory.device_bytes)
        return self.choice.taken or least


@dataclass(frozen=True)
class Plan:
    """A whole plan.

    Attributes:
        recipe: planned.
        geometry: of its model with the method on it.
        data: what it trains on.
        devices: a plan for each kind of device, in the order asked for.
        run_is_known: whether rows or steps are known, and so hours.
    """

    recipe: Recipe
    geometry: Geometry
    data: DataFacts
    devices: tuple[DevicePlan, ...]
    run_is_known: bool


def plan_recipe(recipe: Recipe, order: PlanOrder) -> Plan:
    """Plan a recipe.

    Raises:
        UserError: the model's config or the data cannot be read, or the order is not possible.
    """
    check_order(order)
    _, config = load_config(recipe)
    if recipe.get("strategy") == "pp":
        check_pipeline_keys(recipe)
        check_decoder(config)
    data = data_facts(recipe, order.tokens)
    everywhere = [
        planned_recipe(recipe, planning_hardware(each.flops, order.device)).with_config(config)
        for each in order.accelerators
    ]
    geometry = recipe_geometry(everywhere[0], config)  # shapes are the same on all devices
    devices = tuple(
        _plan_device(recipe, planned, geometry, data, accelerator, order)
        for planned, accelerator in zip(everywhere, order.accelerators, strict=True)
    )
    known = data.rows > 0 or int(recipe.get("max_steps", -1)) > 0
    return Plan(recipe, geometry, data, devices, known)


def _plan_device(
    recipe: Recipe,
    planned: PlannedRecipe,
    geometry: Geometry,
    data: DataFacts,
    accelerator: Accelerator,
    order: PlanOrder,
) -> DevicePlan:
    settings = recipe_settings(planned, geometry, data.longest, supervised_share=data.supervised_share)
    machines, wishes = _machines(accelerator, settings, order), recipe_wishes(recipe, settings, order.device)
    choice = choose_strategy(
        geometry,
        settings,
        machines,
        global_batch=wanted_batch(recipe, settings),
        estimate=partial(estimate_memory, device=order.device),
        wishes=wishes,
    )
    if choice.taken is None:
        return DevicePlan(accelerator, machines, settings, choice, None, None, wishes.headroom)
    time = _time(recipe, geometry, data, accelerator, choice.taken, order)
    cost = cost_of(
        accelerator,
        machines.ranks,
        time.hours,
        purchase=order.purchase,
        own_price=order.price,
        interruptions=order.interruptions,
        power=order.power,
    )
    return DevicePlan(accelerator, machines, settings, choice, time, cost, wishes.headroom)


def _machines(accelerator: Accelerator, settings: TrainingSettings, order: PlanOrder) -> Machines:
    on_cpu = order.device == "cpu"  # its ranks share one memory
    return Machines(
        memory_bytes=accelerator.memory_bytes / (order.per_node if on_cpu else 1),
        flops=peak_flops(accelerator, settings) / (order.per_node if on_cpu else 1),
        bandwidth=accelerator.bandwidth,
        link=accelerator.link,
        host_link=0.0 if on_cpu else accelerator.host_link,
        per_node=order.per_node,
        nodes=order.nodes,
        network=order.network,
        host_memory_bytes=order.host_memory_bytes,
    )


def wanted_batch(recipe: Recipe, settings: TrainingSettings) -> int:
    """The recipe's global batch, which any number of devices keeps."""
    return settings.micro_batch * settings.accumulation * int(recipe.get("num_processes", 1))


def recipe_wishes(recipe: Recipe, settings: TrainingSettings, device: str) -> Wishes:
    """What the recipe has decided: a strategy, a way of checkpointing. The micro-batch is the plan's to choose."""
    strategy = recipe.get("strategy", "auto")
    return Wishes(
        strategy=None if strategy == "auto" else strategy,
        sizes=recipe_sizes(recipe.values),
        checkpointing=settings.checkpointing if "activation_checkpointing" in recipe.given else None,
        offload=device != "cpu",
    )


def _time(
    recipe: Recipe,
    geometry: Geometry,
    data: DataFacts,
    accelerator: Accelerator,
    taken: Considered,
    order: PlanOrder,
) -> TimeEstimate:
    schedule = _schedule(recipe, data, taken)
    settings = taken.settings
    work = data.work
    if data.rows == 0:  # rows as long as may be
        full = data.longest * schedule.global_batch * schedule.steps_per_epoch
        work = replace(work, tokens=full, supervised=full, pairs=full * (data.longest + 1) // 2)
    padding = data.padding_share(settings.micro_batch, schedule.global_batch, int(recipe.get("seed", 42)))
    return estimate_time(
        geometry,
        settings,
        taken.layout,
        accelerator,
        schedule,
        work,
        padding_share=padding,
        measured=order.measured,
        between=_between(recipe, schedule, data, taken.memory, geometry),
        network=order.network,
    )


def _schedule(recipe: Recipe, data: DataFacts, taken: Considered) -> Schedule:
    settings, ranks = taken.settings, taken.layout.data_parallel
    steps = int(recipe.get("max_steps", -1))
    rows = data.rows or max(steps, _UNKNOWN_STEPS) * settings.micro_batch * settings.accumulation * ranks
    known = data.rows > 0 or steps > 0
    return plan_schedule(
        rows,
        settings.micro_batch,
        settings.accumulation,
        ranks,
        epochs=float(recipe.get("num_train_epochs", 3.0)) if known else 1.0,
        max_steps=steps if steps > 0 else None,
    )


def _between(
    recipe: Recipe, schedule: Schedule, data: DataFacts, memory: MemoryEstimate, geometry: Geometry
) -> BetweenSteps:
    """Evaluations and saves; a save is what is trained, in fp32, and its optimizer states."""
    states = max(parts.get("optimizer", 0.0) for parts in memory.phases.values()) + memory.host.get("optimizer", 0.0)
    return BetweenSteps(
        evaluations=_times(recipe.values, "eval", schedule.steps) if data.eval_work.tokens else 0,
        eval_work=data.eval_work,
        saves=_times(recipe.values, "save", schedule.steps),
        save_bytes=4.0 * geometry.trained + states,
    )


def _times(values: Mapping[str, Any], what: str, steps: int) -> int:
    """How often in a run something is done that has a strategy and a number of steps (below 1: a share of the run)."""
    strategy = values.get(f"{what}_strategy", "no")
    if strategy != "steps":
        return int(float(values.get("num_train_epochs", 3))) if strategy == "epoch" else 0
    every = float(values.get(f"{what}_steps") or 1.0)
    return round(1 / every) if every < 1 else int(steps // every)


def check_order(order: PlanOrder) -> None:
    """Raise `UserError` for numbers of devices that are none."""
    for name, count in (("--gpus", order.per_node), ("--nodes", order.nodes)):
        if count < 1:
            raise UserError(f"{name}: {count} is no number of them: give 1 or more.")
