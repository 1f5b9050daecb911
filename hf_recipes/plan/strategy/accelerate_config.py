"""Accelerate's configuration for a layout, in the keys of accelerate 1.15."""

from __future__ import annotations

from typing import Any

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed


def accelerate_config(layout: Layout, deepspeed_file: str | None = None) -> dict[str, Any]:
    """The content of the file for ``accelerate launch --config_file``.

    It says nothing of precision: the Trainer sets it from the recipe, and accelerate refuses it beside a DeepSpeed
    file. Nor of the nodes' addresses and numbers, which stand in the launch line.

    Args:
        layout: one that this package launches, on more than one rank or with DeepSpeed.
        deepspeed_file: DeepSpeed's JSON file, as the ranks find it; needed with ZeRO.
    """
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(layout),
        "num_machines": layout.nodes,
        "num_processes": layout.ranks,
        "main_training_function": "main",
        "use_cpu": False,
    }
    if uses_deepspeed(layout):
        config["deepspeed_config"] = _deepspeed(layout, deepspeed_file)
    elif layout.sharding == "fsdp":
        config["fsdp_config"] = _fsdp(layout)
        if layout.replicas > 1:
            config["parallelism_config"] = {
                "parallelism_config_dp_replicate_size": layout.replicas,
                "parallelism_config_dp_shard_size": layout.shards,
            }
    return config


def _distributed_type(layout: Layout) -> str:
    if uses_deepspeed(layout):
        return "DEEPSPEED"
    return {"fsdp": "FSDP", "ddp": "MULTI_GPU", "none": "NO"}[layout.sharding]


def _deepspeed(layout: Layout, file: str | None) -> dict[str, Any]:
    assert file is not None, "ZeRO is configured in a file of its own"
    settings: dict[str, Any] = {"deepspeed_config_file": file, "zero3_init_flag": layout.sharding == "zero3"}
    if layout.nodes > 1:
        settings["deepspeed_multinode_launcher"] = "standard"  # one launch a node, as with the other strategies
    return settings


def _fsdp(layout: Layout) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "FULL_STATE_DICT",  # one file that any number of ranks resumes from
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_offload_params": layout.offload_weights,
        "fsdp_activation_checkpointing": False,  # the recipe's own, which can leave layers out
    }
