"""The command that starts a planned run."""

from __future__ import annotations

import shlex
from pathlib import Path

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed

_PORT = 29500


def launch_lines(
    layout: Layout, recipe: Path, accelerate_file: Path | None, *, names_output: bool = False
) -> list[str]:
    """One command for each node; the first node's address and the run directory, the same for all, are the user's to
    fill in.

    Args:
        layout: how the job lies over devices.
        recipe: the recipe file.
        accelerate_file: accelerate's config file; None on a single device without DeepSpeed.
        names_output: the recipe has an ``output_dir``, which several nodes need.
    """
    config = shlex.quote(str(recipe))
    if accelerate_file is None:
        return [f"hf-recipes sft --config {config}"]
    file = shlex.quote(str(accelerate_file))
    if layout.nodes == 1:
        return [f"hf-recipes sft --config {config} --config_file {file}"]
    place = f"--main_process_ip FIRST_NODE --main_process_port {_PORT}"
    place += "" if names_output else " --output_dir RUN_DIR"
    return [
        f"hf-recipes sft --config {config} --config_file {file} --machine_rank {node} {place}"
        for node in range(layout.nodes)
    ]


def needs_accelerate_file(layout: Layout) -> bool:
    """Whether a launcher has something to decide."""
    return layout.ranks > 1 or uses_deepspeed(layout)
