"""The files that tell a launcher how the ranks share a model: accelerate's configuration, and DeepSpeed's."""

from __future__ import annotations

from typing import Any

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.accelerate_config import accelerate_config
from hf_recipes.plan.strategy.by_launcher import by_launcher
from hf_recipes.plan.strategy.deepspeed_config import deepspeed_config, uses_deepspeed

ACCELERATE, DEEPSPEED = "accelerate.yaml", "deepspeed.json"


def is_plain(layout: Layout) -> bool:
    """Whether the number of ranks is all that a launcher has to know."""
    return by_launcher(layout).sharding in ("none", "ddp")


def launcher_files(layout: Layout, deepspeed_file: str) -> dict[str, dict[str, Any]]:
    """Contents by name: `ACCELERATE`, and `DEEPSPEED` where it is ZeRO.

    Args:
        layout: one that this package launches.
        deepspeed_file: DeepSpeed's file, as the ranks find it.
    """
    files = {ACCELERATE: accelerate_config(layout, deepspeed_file)}
    if uses_deepspeed(layout):
        files[DEEPSPEED] = deepspeed_config(layout)
    return files
