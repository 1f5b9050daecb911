"""The command that starts a planned run."""

from __future__ import annotations

import shlex
from pathlib import Path

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed

_PORT = 29500


def launch_lines(layout: Layout, recipe: Path, accelerate_file: Path | None) -> list[str]:
    """One command for each node; the first node's address is the user's to fill in.

    `hf-recipes sft` starts the ranks of one machine. On several, each has its launcher.

    Args:
        layout: how the job lies over devices.
        recipe: the recipe file.
        accelerate_file: accelerate's config file; None on a single device without DeepSpeed.
    """
    config = shlex.quote(str(recipe))
    if accelerate_file is None:
        return [f"hf-recipes sft --config {config}"]
    file = shlex.quote(str(accelerate_file))
    if layout.nodes == 1:
        return [f"hf-recipes sft --config {config} --config_file {file}"]
    place = f"--main_process_ip FIRST_NODE --main_process_port {_PORT}"
    return [
        f"accelerate launch --config_file {file} --machine_rank {node} {place} -m hf_recipes.sft --config {config}"
        for node in range(layout.nodes)
    ]


def needs_accelerate_file(layout: Layout) -> bool:
    """Whether a launcher has something to decide."""
    return layout.ranks > 1 or uses_deepspeed(layout)
