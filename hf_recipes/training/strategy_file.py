"""The launcher's configuration that a recipe's `strategy` stands for, and the check that the launcher followed it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import write_json, write_text
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.by_launcher import by_launcher
from hf_recipes.plan.strategy.launcher_files import ACCELERATE, DEEPSPEED, is_plain, launcher_files
from hf_recipes.plan.strategy.names import AS_NAMED, Sizes, check_sizes, describe, layout_of
from hf_recipes.training.machines import read_config


def recipe_sizes(values: Any) -> Sizes:
    """The degrees that a recipe gives.

    Args:
        values: a `Recipe`'s values, or our dataclass of keys.
    """
    names = ("tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size")
    return Sizes(*(values.get(name) if isinstance(values, Mapping) else getattr(values, name, None) for name in names))


def strategy_file(
    strategy: str, ranks: int, run_directory: Path, sizes: Sizes = AS_NAMED, nodes: int = 1
) -> str | None:
    """Write accelerate's config file (and DeepSpeed's) for a strategy into the run directory; None where the launcher
    needs none.

    Args:
        strategy: the recipe's.
        ranks: on all machines.
        run_directory: made if it is not there.
        sizes: the recipe's.
        nodes: machines.

    Raises:
        UserError: the strategy is not one for so many ranks.
    """
    if strategy == "auto":
        check_sizes(strategy, sizes)
        return None
    layout = layout_of(strategy, ranks, nodes, sizes)
    if is_plain(layout):
        return None
    run_directory.mkdir(parents=True, exist_ok=True)
    deepspeed, accelerate = run_directory / DEEPSPEED, run_directory / ACCELERATE
    files = launcher_files(layout, str(deepspeed))
    if DEEPSPEED in files:
        write_json(deepspeed, files[DEEPSPEED])
    write_text(accelerate, yaml.safe_dump(files[ACCELERATE], sort_keys=False))
    return str(accelerate)


def configured_processes(config_file: str) -> int | None:
    """The number of ranks that an accelerate config file asks for; None where it says nothing or is not there."""
    count = read_config(config_file).get("num_processes")
    return count if isinstance(count, int) else None


def check_strategy(strategy: str, launched: Layout, sizes: Sizes = AS_NAMED) -> None:
    """Raise `UserError` where the recipe's strategy is not how the launcher laid the run over its ranks.

    Args:
        strategy: the recipe's.
        launched: by the launcher.
        sizes: the recipe's.
    """
    if strategy == "auto":
        check_sizes(strategy, sizes)
        return
    wanted = layout_of(strategy, launched.ranks, launched.nodes, sizes)
    if by_launcher(wanted) != launched:
        raise UserError(
            f"strategy: {strategy} means {describe(by_launcher(wanted))}, and the launcher made {describe(launched)}: "
            "start the run with `hf-recipes sft`, or with the config file that `hf-recipes plan --write` makes for it."
        )
