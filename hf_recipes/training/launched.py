"""How the launcher laid a run over its ranks, as the environment of a rank tells it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from hf_recipes.core.data_parallel import degrees
from hf_recipes.models.placement import FSDP, sharded_by, under_deepspeed
from hf_recipes.plan.layout import Layout, Sharding

if TYPE_CHECKING:
    from trl import SFTConfig


_STAGES: dict[int, Sharding] = {1: "zero1", 2: "zero2", 3: "zero3"}


def node_count(ranks: int) -> int:
    """Machines that so many ranks stand in, by the launcher's word."""
    return max(1, ranks // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", ranks))))


def launched_layout(arguments: SFTConfig) -> Layout:
    """How the launcher laid this run over its ranks."""
    ranks = int(arguments.world_size)
    nodes = node_count(ranks)
    if under_deepspeed():
        return _under_deepspeed(ranks, nodes, arguments)
    if ranks == 1:
        return Layout()
    if sharded_by(arguments) != FSDP:
        return Layout(ranks, nodes, "ddp")
    replicas = int(os.environ.get("PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1"))
    context = int(os.environ.get("PARALLELISM_CONFIG_CP_SIZE", "1"))
    offload = os.environ.get("FSDP_OFFLOAD_PARAMS", "false").lower() == "true"
    return Layout(
        ranks,
        nodes,
        "fsdp",
        context=context,
        replicas=replicas,
        offload_optimizer=offload,
        offload_weights=offload,
    )


def run_layout(arguments: SFTConfig) -> Layout:
    """How a run lies over its ranks: as the launcher laid it, and as the model is cut when it is loaded."""
    tensor, _ = degrees(arguments)
    if tensor == 1:
        return launched_layout(arguments)
    ranks = int(arguments.world_size)
    return Layout(ranks, node_count(ranks), "fsdp" if ranks > tensor else "none", tensor=tensor)


def _under_deepspeed(ranks: int, nodes: int, arguments: SFTConfig) -> Layout:
    plugin: Any = getattr(arguments, "deepspeed_plugin", None)
    if plugin is None:
        return Layout(ranks, nodes, "ddp" if ranks > 1 else "none")
    zero = plugin.deepspeed_config.get("zero_optimization", {})
    offloaded = [
        (zero.get(f"offload_{what}") or {}).get("device", "none") not in ("none", None)
        for what in ("optimizer", "param")
    ]
    sharding = _STAGES.get(int(plugin.zero_stage), "ddp")
    return Layout(ranks, nodes, sharding, offload_optimizer=offloaded[0], offload_weights=offloaded[1])
