"""The launcher's configuration that a recipe's `strategy` stands for, and the check that the launcher followed it."""

from __future__ import annotations

from pathlib import Path

import yaml

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import write_json, write_text
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.accelerate_config import accelerate_config
from hf_recipes.plan.strategy.deepspeed_config import deepspeed_config, uses_deepspeed
from hf_recipes.plan.strategy.launch_line import needs_accelerate_file
from hf_recipes.plan.strategy.names import describe, layout_of


def strategy_file(strategy: str, ranks: int, run_directory: Path) -> str | None:
    """Write accelerate's config file (and DeepSpeed's) for a strategy into the run directory; None where the launcher
    needs none.

    Args:
        strategy: the recipe's.
        ranks: on this machine.
        run_directory: made if it is not there.

    Raises:
        UserError: the strategy is not one for so many ranks.
    """
    if strategy in ("auto", "ddp", "single"):
        if strategy != "auto":
            layout_of(strategy, ranks)
        return None
    layout = layout_of(strategy, ranks)
    if not needs_accelerate_file(layout):
        return None
    run_directory.mkdir(parents=True, exist_ok=True)
    deepspeed, accelerate = run_directory / "deepspeed.json", run_directory / "accelerate.yaml"
    if uses_deepspeed(layout):
        write_json(deepspeed, deepspeed_config(layout))
    write_text(accelerate, yaml.safe_dump(accelerate_config(layout, str(deepspeed)), sort_keys=False))
    return str(accelerate)


def configured_processes(config_file: str) -> int | None:
    """The number of ranks that an accelerate config file asks for; None where it says nothing or is not there."""
    try:
        content = yaml.safe_load(Path(config_file).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return None
    count = content.get("num_processes") if isinstance(content, dict) else None
    return count if isinstance(count, int) else None


def check_strategy(strategy: str, launched: Layout) -> None:
    """Raise `UserError` where the recipe's strategy is not how the launcher laid the run over its ranks."""
    if strategy == "auto":
        return
    wanted = layout_of(strategy, launched.ranks, launched.nodes)
    if wanted != launched:
        raise UserError(
            f"strategy: {strategy} means {describe(wanted)}, and the launcher made {describe(launched)}: start the run "
            "with `hf-recipes sft`, or with the config file that `hf-recipes plan --write` makes for it."
        )
