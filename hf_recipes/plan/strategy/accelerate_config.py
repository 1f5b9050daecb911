"""Accelerate's configuration for a layout, in the keys of accelerate 1.15."""

from __future__ import annotations

from typing import Any

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.by_launcher import by_launcher
from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed


def accelerate_config(layout: Layout, deepspeed_file: str | None = None) -> dict[str, Any]:
    """The content of the file for ``accelerate launch --config_file``.

    It says nothing of precision: the Trainer sets it from the recipe, and accelerate refuses it beside a DeepSpeed
    file. Nor of the nodes' addresses and numbers, which stand in the launch line.

    Args:
        layout: one that this package launches, on more than one rank or with DeepSpeed.
        deepspeed_file: DeepSpeed's JSON file, as the ranks find it; needed with ZeRO.
    """
    layout = by_launcher(layout)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(layout),
        "num_machines": layout.nodes,
        "num_processes": layout.ranks,
        # Of several machines it stands in the launch line; on one, two runs would meet at accelerate's 29500.
        **({"main_process_port": 0} if layout.nodes == 1 else {}),
        "main_training_function": "main",
        "use_cpu": False,
    }
    if uses_deepspeed(layout):
        config["deepspeed_config"] = _deepspeed(layout, deepspeed_file)
    elif layout.sharding == "fsdp":
        config["fsdp_config"] = _fsdp(layout)
        if mesh := _mesh(layout):
            config["parallelism_config"] = mesh
    return config


def _mesh(layout: Layout) -> dict[str, int]:
    """The degrees that FSDP2 does not take from the number of ranks alone."""
    if layout.context > 1:
        sizes = {"dp_shard_size": layout.data_parallel, "cp_size": layout.context}
    elif layout.replicas > 1:
        sizes = {"dp_replicate_size": layout.replicas, "dp_shard_size": layout.shards}
    else:
        sizes = {}
    return {f"parallelism_config_{name}": size for name, size in sizes.items()}


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
        "fsdp_cpu_ram_efficient_loading": True,  # rank 0 alone reads the weights, the others get theirs from it
        "fsdp_offload_params": layout.offload_weights,
        "fsdp_activation_checkpointing": False,  # the recipe's own, which can leave layers out
    }
