"""`hf-recipes sweep`: one recipe with several values of some keys, side by side; the learning-rate range test."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.cli.flags import refuse_misspelt_flags, require_recipe
from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger

if TYPE_CHECKING:
    from hf_recipes.recipe.resolve import Recipe
    from hf_recipes.sweep.axes import Axis
    from hf_recipes.sweep.order import Order

HELP = """Train a recipe with several values of some keys and put the runs side by side: losses, forgetting, parameters,
memory, speed. Each trial is an ordinary run directory, as `hf-recipes sft` makes it. The same command goes on where it
was stopped; other values in the same directory are added.

  hf-recipes sweep --config RECIPE --lr 1e-5,2e-5,5e-5 --batch 16,32
  hf-recipes sweep --config RECIPE --method full,lora,qlora,adapter,prefix --evaluate
  hf-recipes sweep --config RECIPE --lr 1e-6..1e-3 --lora_r 4,8,16 --search random --trials 20 --prune median
  hf-recipes sweep --config RECIPE --lr_range 1e-7..1

Values of any recipe key stand apart by commas, lists in brackets apart by semicolons: '[q_proj,v_proj];[all-linear]'.
LOW..HIGH:5 is five values of a range. Short names: --lr, --batch (rows in a step, over all ranks), --precision
(fp32, bf16, fp16), --rank, --alpha, --targets, --epochs.
"""
TAKES_RECIPE_KEYS = True
SEARCHES = ("grid", "random", "optuna")
FLAGS = (
    "config",
    "search",
    "trials",
    "prune",
    "metric",
    "evaluate",
    "lr_range",
    "steps",
    "num_processes",
    "config_file",
    "json",
)
_RANGE_STEPS = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sweep's own flags; every other one is a recipe key."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("--output_dir", metavar="DIR", help="of the sweep (default sweeps/NAME)")
    parser.add_argument("--search", default="grid", metavar="HOW", help="grid (default), random or optuna (TPE)")
    parser.add_argument("--trials", metavar="N", help="points to draw, for random and optuna; --seed seeds the draw")
    parser.add_argument(
        "--prune",
        default="off",
        metavar="HOW",
        help="stop trials that are worse than the median of the others at the same place (median), or by Optuna's "
        "hyperband; off by default: the watchers of the runs stop what explodes anyway",
    )
    parser.add_argument(
        "--metric",
        default="eval_loss",
        metavar="NAME",
        help="sort by this: a loss of the evaluations while training (default eval_loss), or with --evaluate a line of "
        "the evaluation's table",
    )
    parser.add_argument("--evaluate", action="store_true", help="evaluate each trial after training")
    parser.add_argument("--lr_range", metavar="LOW..HIGH", help="instead: the learning-rate range test")
    parser.add_argument("--steps", metavar="N", help=f"steps of the range test (default {_RANGE_STEPS})")
    parser.add_argument("--num_processes", type=int, metavar="N", help="ranks of each trial (default 1)")
    parser.add_argument("--config_file", metavar="FILE", help="an accelerate config file for each trial")
    parser.add_argument("--json", action="store_true", help="print sweep.json instead of the table")


def run(options: argparse.Namespace) -> int:
    """Sweep, print the table, and return 0; 1 where no trial ended well."""
    refuse_misspelt_flags("sweep", FLAGS, options.recipe_keys)
    require_recipe(options.config)
    if options.lr_range is not None:
        return _run_range(options)
    if options.steps is not None:
        raise UserError("--steps is of the range test (--lr_range); the length of trials is --max_steps or --epochs.")
    order = read_order(options)
    from hf_recipes.sweep.run import run_sweep
    from hf_recipes.training.on_finish import run_on_finish

    rows = run_sweep(order)
    _show(order, rows, as_json=options.json)
    run_on_finish(order.base.get("on_finish"), order.directory, 0)
    return 0


def _show(order: Order, rows: Any, *, as_json: bool) -> None:
    from hf_recipes.sweep.report import sentences
    from hf_recipes.sweep.table import terminal

    if as_json:
        print((order.directory / "sweep.json").read_text(encoding="utf-8"), end="")
        return
    print(terminal(rows, order.metric, sentences(order.directory, rows, order.metric, less=order.less)))
    print(f"Page: {order.directory / 'sweep.html'}")


def read_order(options: argparse.Namespace) -> Order:
    """What the command line asks for, checked as far as that goes without the trials.

    Raises:
        UserError: a flag or a key is wrong.
    """
    from hf_recipes.data.check import check_sources
    from hf_recipes.recipe.key_table import load_key_table
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.sweep.axes import BATCH, PRECISION, read_axes
    from hf_recipes.sweep.book import read_book
    from hf_recipes.sweep.order import Order
    from hf_recipes.sweep.outcome import less_is_better
    from hf_recipes.sweep.trials import arguments

    trials = _count(options.trials, "--trials") if options.trials is not None else None
    recipe = load_recipe(options.config)
    directory = Path(options.output_dir or f"sweeps/{recipe.name}")
    book = read_book(directory)
    axes, fixed = read_axes(options.recipe_keys, load_key_table(), book.keys if book else ())
    _check_search(options, axes, goes_on=book is not None)
    _check_config_file(options, axes)
    base = load_recipe(options.config, arguments({k: v for k, v in fixed.items() if k not in (BATCH, PRECISION)}))
    check_sources(base.values["datasets"], base.get("bad_rows", "drop"))
    _check_metric(options, base)
    _tell_keys(options.config, axes, fixed, base)
    return Order(
        config=options.config,
        base=base,
        fixed=fixed,
        axes=axes,
        directory=directory,
        search=options.search,
        trials=trials,
        seed=int(base.get("seed", 42)),
        prune=None if options.prune == "off" else options.prune,
        metric=options.metric,
        less=less_is_better(options.metric),
        evaluate=options.evaluate,
        processes=_processes(options, base),
        launch_flags=_launch_flags(options),
        own_launch=options.config_file is None,
        hardware=_hardware(axes, fixed),
    )


def _check_search(options: argparse.Namespace, axes: list[Axis], *, goes_on: bool) -> None:
    from hf_recipes.sweep.points import MOST_TRIALS

    if options.search not in SEARCHES:
        raise UserError(f"--search: '{options.search}' is none of {', '.join(SEARCHES)}.")
    if options.prune not in ("off", "median", "hyperband"):
        raise UserError(f"--prune: '{options.prune}' is none of off, median, hyperband.")
    if options.prune == "hyperband" and options.search != "optuna":
        raise UserError("--prune hyperband is Optuna's: add --search optuna, or write --prune median.")
    if options.prune != "off" and not options.metric.startswith("eval_"):
        raise UserError(f"--prune goes by losses while training, and --metric {options.metric} is known after it only.")
    if options.search == "grid" and options.trials is not None:
        raise UserError("--trials: a grid runs all its trials: write --search random to draw some.")
    if options.trials is not None and int(options.trials) > MOST_TRIALS:
        raise UserError(
            f"--trials: {int(options.trials):,} are more than anybody waits for: give {MOST_TRIALS:,} or less."
        )
    if options.search != "grid" and options.trials is None:
        raise UserError(f"--search {options.search}: say how many points to draw with --trials N.")
    if not axes or (not goes_on and all(axis.span is None and len(axis.values) < 2 for axis in axes)):
        raise UserError(
            "There is nothing to compare: give a key several values, such as --lr 1e-5,2e-5 (`hf-recipes sft` trains "
            "one run)."
        )


def _check_config_file(options: argparse.Namespace, axes: list[Axis]) -> None:
    if options.config_file is None:
        return
    if not Path(options.config_file).is_file():
        raise UserError(f"--config_file: '{options.config_file}' does not exist: name an accelerate config file.")
    if any(axis.key == "strategy" for axis in axes):
        raise UserError("--strategy is decided by --config_file: keep one of them.")


def _check_metric(options: argparse.Namespace, base: Recipe) -> None:
    if options.evaluate and not base.get("evaluation"):
        raise UserError("--evaluate: the recipe has no 'evaluation' to compare the trials on: add one.")
    if not options.metric.startswith("eval_"):
        if not options.evaluate:
            raise UserError(
                f"--metric: '{options.metric}' is no loss while training (eval_loss, eval_domain_loss, …): add "
                "--evaluate to take it from the evaluation's table."
            )
        return
    if base.get("eval_share", 0.1) == 0 or base.get("eval_strategy") == "no":
        raise UserError(
            f"--metric: {options.metric} is measured on eval rows, and the recipe has none: change eval_share or "
            "eval_strategy."
        )


def _tell_keys(config: str, axes: list[Axis], fixed: dict[str, Any], base: Recipe) -> None:
    from hf_recipes.sweep.axes import short, show
    from hf_recipes.sweep.trials import rate_of_method

    for key, value in fixed.items():
        logger.info("--%s has one value: %s for all trials.", short(key), show(value))
    for axis in axes:
        if axis.span:
            how = "evenly in the logarithm" if axis.span.log else "evenly"
            logger.info("%s: drawn %s from %s.", axis.key, how, axis.span)
    keys = {axis.key for axis in axes}
    if "lora_r" in keys and not {"lora_alpha", "use_rslora"} & (keys | set(fixed)):
        alpha = base.get("lora_alpha", 16)
        logger.info(
            "lora_alpha stays %s for all ranks, so alpha / r differs too: sweep over --alpha to part them.", alpha
        )
    if "seed" in keys:
        logger.info("seed also decides which rows are held out: the spread of seeds holds that of the split too.")
    methods = next((axis.values for axis in axes if axis.key == "method"), ())
    if not {"learning_rate"} & (keys | set(fixed)):
        for method in methods:
            if (rate := rate_of_method(config, method)) is not None:
                logger.warning(
                    "learning_rate: the recipe's %s is meant for %s; %s takes its default, %g.",
                    show(base.values["learning_rate"]),
                    base.get("method", "lora"),
                    method,
                    rate,
                )


def _hardware(axes: list[Axis], fixed: dict[str, Any]) -> Any:
    """This machine's, where a trial asks for a precision."""
    if not {"precision", "dtype", "bf16", "fp16"} & {*(axis.key for axis in axes), *fixed}:
        return None
    from hf_recipes.models.precision import detect_hardware

    return detect_hardware()


def _processes(options: argparse.Namespace, base: Recipe) -> int:
    """Ranks of a trial."""
    from hf_recipes.training.strategy_file import configured_processes

    asked = configured_processes(options.config_file) if options.config_file else None
    ranks = base.get("num_processes") or asked or 1 if options.num_processes is None else options.num_processes
    if int(ranks) < 1:
        raise UserError(f"--num_processes: {ranks} is not a number of processes: give 1 or more.")
    return int(ranks)


def _launch_flags(options: argparse.Namespace) -> list[str]:
    flags = []
    if options.num_processes is not None:
        flags += ["--num_processes", str(options.num_processes)]
    if options.config_file is not None:
        flags += ["--config_file", options.config_file]
    return flags


def _count(text: str, flag: str, least: int = 1) -> int:
    count = int(text) if text.strip().isdecimal() else 0
    if count < least:
        raise UserError(f"{flag}: '{text}' is not a number of {least} or more.")
    return count


def _run_range(options: argparse.Namespace) -> int:
    from hf_recipes.sweep.range_test import FEWEST_STEPS, read_range

    low, high = read_range(options.lr_range)
    steps = _count(options.steps or str(_RANGE_STEPS), "--steps", FEWEST_STEPS)
    for flag in ("search", "prune", "metric", "trials", "evaluate", "config_file"):
        if getattr(options, flag) not in ("grid", "off", "eval_loss", None, False):
            raise UserError(f"--{flag} is of a sweep, and --lr_range is one run: leave one of them out.")
    from hf_recipes.sweep.range_run import range_test

    if options.num_processes is not None and options.num_processes < 1:
        raise UserError(f"--num_processes: {options.num_processes} is not a number of processes: give 1 or more.")
    directory = Path(options.output_dir) if options.output_dir else None
    with redirect_stdout(sys.stderr):  # the Trainer prints its losses
        found = range_test(
            options.config, options.recipe_keys, low, high, steps, directory, ranks=options.num_processes
        )
    print(json.dumps(found, indent=2) if options.json else found["told"])
    return 0
