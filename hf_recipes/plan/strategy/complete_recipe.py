"""The user's recipe with what a plan decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import Checkpointing, TrainingSettings
from hf_recipes.plan.strategy.names import sizes_of, strategy_of

# The Trainer's ``activation_checkpointing_kwargs``; None: off (see `training.checkpointing`).
CHECKPOINTING_KWARGS: dict[Checkpointing, dict[str, Any] | None] = {
    "off": None,
    "every_4": {"every_n_layers": 4},
    "every_3": {"every_n_layers": 3},
    "every_2": {"every_n_layers": 2},
    "selective": {"selective": True},
    "all": {},
    "host": {"offload": True},
}
# What a plan decides, under any name the recipe may have given it.
_DECIDED = (
    "strategy",
    "num_processes",
    "tensor_parallel_size",
    "context_parallel_size",
    "pipeline_parallel_size",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "auto_micro_batch",
    "activation_checkpointing",
    "activation_checkpointing_kwargs",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
)


def complete_recipe(values: Mapping[str, Any], layout: Layout, settings: TrainingSettings) -> dict[str, Any]:
    """The recipe's keys with the plan's in place of those it decides.

    Args:
        values: the keys the user gave; their order is kept.
        layout: how the job lies over devices.
        settings: micro-batch, accumulation and checkpointing are taken from it.
    """
    kept = {key: value for key, value in values.items() if key not in _DECIDED}
    decided: dict[str, Any] = {
        "strategy": strategy_of(layout),
        "num_processes": layout.ranks,
        "per_device_train_batch_size": settings.micro_batch,
        "gradient_accumulation_steps": settings.accumulation,
    }
    sizes = {f"{name}_parallel_size": size for name, size in asdict(sizes_of(layout)).items()}
    decided.update({name: size for name, size in sizes.items() if size is not None})
    kwargs = CHECKPOINTING_KWARGS[settings.checkpointing]
    decided["activation_checkpointing"] = kwargs is not None
    if kwargs:
        decided["activation_checkpointing_kwargs"] = kwargs
    if layout.sharding == "fsdp" and settings.accumulation > 1:
        decided["accelerator_config"] = _reduced_each_time(kept.pop("accelerator_config", None))
    return {**kept, **decided}


def _reduced_each_time(given: Any) -> dict[str, Any]:
    """Without it FSDP2 reduces gradients at a step's last micro-batch only, and until then each rank holds all of them
    unsharded."""
    config = dict(given) if isinstance(given, Mapping) else {}
    kwargs = config.get("gradient_accumulation_kwargs") or {}
    return {**config, "gradient_accumulation_kwargs": {**kwargs, "sync_each_batch": True}}
