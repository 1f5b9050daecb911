"""`strategy: auto` on several devices: what the planner takes for the devices that are here."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.accelerators import Accelerator, accelerator_of_device
from hf_recipes.core.log import logger
from hf_recipes.recipe.resolve import Recipe

_QUERY = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
_OURS = ("strategy", "num_processes")


@dataclass(frozen=True)
class AutoChoice:
    """A strategy, and the keys that go with it as command-line arguments of the ranks."""

    strategy: str
    arguments: tuple[str, ...] = ()


def choose_here(recipe: Recipe, ranks: int) -> AutoChoice:
    """The planner's choice for a recipe on the devices of this machine, told in one line; ``auto`` itself (which is
    DDP, unless a launcher says otherwise) where they are not known, or nothing is to be shared.

    Args:
        recipe: checked.
        ranks: on this machine.

    Raises:
        UserError: the model or the data cannot be read.
    """
    accelerator = known_device() if ranks > 1 else None
    if accelerator is None:
        return AutoChoice("auto")
    return planned_choice(recipe, ranks, accelerator)


def known_device() -> Accelerator | None:
    """The catalogue's entry of this machine's devices; None where they differ, are not known or are not NVIDIA's. Asks
    the driver's own tool: torch would open a context on a device, and keep it."""
    try:
        done = subprocess.run(_QUERY, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    names = {line.strip() for line in done.stdout.splitlines() if line.strip()}
    return accelerator_of_device(names.pop()) if len(names) == 1 else None


def planned_choice(recipe: Recipe, ranks: int, accelerator: Accelerator) -> AutoChoice:
    """The planner's choice on so many devices of a kind.

    Args:
        recipe: checked; keys that it gives stay as they are.
        ranks: devices, on this machine.
        accelerator: the kind.

    Raises:
        UserError: the model or the data cannot be read.
    """
    from hf_recipes.core.container_memory import free_memory_bytes
    from hf_recipes.plan.strategy.complete_recipe import complete_recipe
    from hf_recipes.plan.strategy.names import strategy_of
    from hf_recipes.training.planning import PlanOrder, plan_recipe

    order = PlanOrder((accelerator,), per_node=ranks, host_memory_bytes=float(free_memory_bytes()))
    choice = plan_recipe(recipe.with_values(num_processes=ranks), order).devices[0].choice
    name = strategy_of(choice.taken.layout) if choice.taken else None
    if choice.taken is None or name in (None, "ddp"):
        why = choice.reason if choice.taken is None else "the whole job fits on each device"
        logger.info("strategy: auto takes ddp over %d × %s: %s.", ranks, accelerator.name, why)
        return AutoChoice("auto")
    logger.info("strategy: auto takes %s: %s.", name, choice.reason)
    decided = complete_recipe({}, choice.taken.layout, choice.taken.settings)
    return AutoChoice(str(name), tuple(as_arguments(decided, recipe)))


def as_arguments(decided: Mapping[str, Any], recipe: Recipe) -> list[str]:
    """What a plan decided as command-line keys: micro-batch, accumulation, checkpointing. What the recipe gives of
    checkpointing stays; its global batch does too, cut anew.

    Args:
        decided: keys and values.
        recipe: its given keys are left out.
    """
    arguments: list[str] = []
    for key, value in decided.items():
        if key in _OURS or ("checkpointing" in key and "activation_checkpointing" in recipe.given):
            continue
        arguments += _arguments(key, value)
    return arguments


def _arguments(key: str, value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [word for name, inner in value.items() for word in _arguments(f"{key}.{name}", inner)]
    return [f"--{key}", str(value).lower() if isinstance(value, bool) else str(value)]
