"""`hf-recipes plan`: will it fit, how, how long, at what cost; before anything is downloaded or rented."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import CheckFailed, UserError

if TYPE_CHECKING:
    from hf_recipes.plan.hardware.here import Machine
    from hf_recipes.recipe.resolve import Recipe
    from hf_recipes.training.planning import Plan, PlanOrder

HELP = """Will it fit, on which devices, how long does it take, what does it cost, which parallelism: from the model's
config and the recipe's data alone, without weights.

A recipe by --config, or recipe keys alone: --model_name_or_path NAME --method qlora --max_length 2048. Any recipe key
can be given as --key value. Without --gpu it is planned for this machine. Exit code 1 when nothing fits.
"""
TAKES_RECIPE_KEYS = True
FLAGS = (
    "config", "gpu", "gpu-memory", "gpus", "nodes", "network", "host-memory", "tokens", "mfu", "tokens-per-second",
    "price", "purchase", "price-per-kwh", "pue", "write", "overwrite", "html", "png", "trace", "here", "json",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is planned for, what is known, what is written."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument(
        "--gpu",
        metavar="NAMES",
        help="kinds of device, as in h100,a100-80g,rtx-4090: the first in detail; a YAML file for one of your own",
    )
    parser.add_argument("--gpu-memory", metavar="SIZE", help="memory of each, where it is another, e.g. 24GiB")
    parser.add_argument("--gpus", metavar="N", default="1", help="devices of a machine (default 1)")
    parser.add_argument("--nodes", metavar="N", default="1", help="machines (default 1)")
    parser.add_argument("--network", metavar="GBIT", default="100", help="Gbit/s between machines (default 100)")
    parser.add_argument("--host-memory", metavar="SIZE", help="memory of a machine, for what is offloaded, e.g. 256GiB")
    parser.add_argument("--tokens", metavar="N", help="tokens of an epoch, in place of the recipe's data, e.g. 1e9")
    parser.add_argument("--mfu", metavar="SHARE", help="measured share of the peak, as `profile` tells it, e.g. 0.35")
    parser.add_argument("--tokens-per-second", metavar="N", help="measured speed of all devices together")
    parser.add_argument("--price", metavar="USD", help="of one device and hour, in place of list prices")
    parser.add_argument("--purchase", default="on-demand", metavar="KIND", help="on-demand (default), reserved or spot")
    parser.add_argument("--price-per-kwh", metavar="USD", help="of energy")
    parser.add_argument(
        "--pue", metavar="FACTOR", help="what the building takes for each unit of energy (default 1.56)"
    )
    parser.add_argument("--write", metavar="DIR", help="write recipe, accelerate and DeepSpeed config there")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    parser.add_argument("--html", metavar="FILE", help="write the plan as a page")
    parser.add_argument("--png", metavar="FILE", help="write the plan as a picture")
    parser.add_argument(
        "--trace", action="store_true", help="check the memory by tracing a step on fake tensors (a minute)"
    )
    parser.add_argument(
        "--here", action="store_true", help="measure this machine, and plan for it where a model is given"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")


def run(options: argparse.Namespace) -> int:
    """Plan, show, write."""
    from hf_recipes.cli.flags import refuse_misspelt_flags

    refuse_misspelt_flags("plan", FLAGS, options.recipe_keys)
    for flag in ("html", "png"):
        _check_file(getattr(options, flag), flag)
    if options.write is not None and (not options.write or Path(options.write).is_file()):
        raise UserError(f"--write: '{options.write}' is no directory: name one, which is made where it is not there.")
    _check_write(options)
    with redirect_stdout(sys.stderr):  # libraries talk; standard output is for the plan alone
        only_here = options.here and not options.config and not options.recipe_keys
        if only_here and (options.write or options.html or options.png):
            raise UserError(
                "--here without a model measures this machine and writes no plan: give --config RECIPE too."
            )
        recipe = None if only_here else _recipe(options)
        machine = None if options.gpu is not None and not options.here else _measure()
        planned = None if recipe is None else _plan(options, recipe, machine)
    if planned is None:
        _print_machine(machine, options)
        return 0
    plan, order = planned
    _show(plan, order, options)
    _write(plan, options)
    if all(device.choice.taken is None for device in plan.devices):
        raise CheckFailed("it fits on none of the devices planned for")
    return 0


def _recipe(options: argparse.Namespace) -> Recipe:
    from hf_recipes.recipe.resolve import load_recipe, recipe_of_keys

    if options.config:
        return load_recipe(options.config, options.recipe_keys)
    if not options.recipe_keys:
        raise UserError(
            "Nothing to plan: give --config RECIPE or --model_name_or_path NAME; --here measures this machine."
        )
    return recipe_of_keys(options.recipe_keys, "plan")


def _measure() -> Machine:
    from hf_recipes.plan.hardware.here import measure_machine

    return measure_machine()


def _plan(options: argparse.Namespace, recipe: Recipe, machine: Machine | None) -> tuple[Plan, PlanOrder]:
    from hf_recipes.training.planning import plan_recipe

    order = _order(options, machine)
    return plan_recipe(recipe, order), order


def _order(options: argparse.Namespace, machine: Machine | None) -> PlanOrder:
    from hf_recipes.plan.cost import Power
    from hf_recipes.plan.hardware.accelerator import choose_accelerators, parse_bytes, with_memory
    from hf_recipes.plan.prices import PURCHASES
    from hf_recipes.plan.time import Measured
    from hf_recipes.training.planning import PlanOrder

    if options.purchase not in PURCHASES:
        raise UserError(f"--purchase: '{options.purchase}' is none of {', '.join(PURCHASES)}.")
    if options.gpu is not None:
        accelerators = choose_accelerators(options.gpu, options.gpu_memory)
    else:
        assert machine is not None
        accelerators = tuple({device.name: device.as_accelerator() for device in machine.devices}.values())
        if options.gpu_memory is not None:
            accelerators = tuple(with_memory(each, options.gpu_memory) for each in accelerators)
    on_cpu = options.gpu is None and machine is not None and machine.devices[0].kind == "cpu"
    mfu, speed = _number(options, "mfu"), _number(options, "tokens_per_second")
    if mfu and speed:
        raise UserError("--mfu and --tokens-per-second both say how fast it is: give one of them.")
    if mfu and mfu > 1:
        raise UserError(f"--mfu: {mfu:g} is more than the peak: give a share, such as 0.35.")
    pue = _number(options, "pue")
    if pue is not None and pue < 1:
        raise UserError(f"--pue: {pue:g} is below 1: it is all energy over that of the computers, such as 1.2.")
    power = Power(usd_per_kwh=_number(options, "price_per_kwh"), **({} if pue is None else {"pue": pue}))
    tokens = _number(options, "tokens")
    return PlanOrder(
        accelerators=accelerators,
        per_node=_count(options, "gpus"),
        nodes=_count(options, "nodes"),
        network=(_number(options, "network") or 100.0) * 1e9 / 8,
        host_memory_bytes=_host_memory(options, machine, parse_bytes),
        tokens=None if tokens is None else max(1, int(tokens)),
        purchase=options.purchase,
        price=_number(options, "price"),
        power=power,
        measured=Measured(speed, mfu, "as given") if mfu or speed else None,
        device="cpu" if on_cpu else "cuda",
    )


def _host_memory(options: argparse.Namespace, machine: Machine | None, parse_bytes: Any) -> float | None:
    if options.host_memory is not None:
        return float(parse_bytes(options.host_memory))
    return None if options.gpu is not None or machine is None else float(machine.ram_free_bytes)


def _number(options: argparse.Namespace, name: str) -> float | None:
    """Read by hand: argparse would put its own words around an error."""
    text = getattr(options, name)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UserError(f"--{name.replace('_', '-')}: '{text}' is no number above 0: write it like 1e7 or 0.5.")
    return value


def _count(options: argparse.Namespace, name: str) -> int:
    text = getattr(options, name)
    if not text.isdecimal() or len(text) > 5 or int(text) < 1:
        raise UserError(f"--{name}: '{text[:20]}' is no whole number from 1 to 99999.")
    return int(text)


def _show(plan: Plan, order: PlanOrder, options: argparse.Namespace) -> None:
    from hf_recipes.core.files import json_safe
    from hf_recipes.training.plan_view import plan_dict, plan_view

    traced = _trace(plan, order) if options.trace else None
    if options.json:
        print(json.dumps(json_safe({**plan_dict(plan), "trace": traced}), ensure_ascii=False, indent=2))
    view = plan_view(plan, order)
    if not options.json:
        from hf_recipes.core.printable import print_drawn
        from hf_recipes.plan.pictures.terminal import BLOCKS, PLAIN_BLOCKS, render

        shown = f"\n{traced['sentence']}" if traced else ""
        print_drawn(lambda plain: render(view, blocks=PLAIN_BLOCKS if plain else BLOCKS) + shown, "".join(BLOCKS))
    if options.html:
        from hf_recipes.plan.pictures.page import write_page

        write_page(view, Path(options.html))
    if options.png:
        from hf_recipes.plan.pictures.png import write_png

        write_png(view, Path(options.png))


def _trace(plan: Plan, order: PlanOrder) -> dict[str, Any]:
    from hf_recipes.training.plan_trace import trace_plan

    with redirect_stdout(sys.stderr):
        return trace_plan(plan, order)


def _check_file(name: str | None, flag: str) -> None:
    """Said before the work is done."""
    if name is not None and Path(name).suffix.lower() not in (f".{flag}", ".htm" if flag == "html" else f".{flag}"):
        raise UserError(f"--{flag}: '{name}' does not end in .{flag}: name a file that does.")
    if name is not None and (Path(name).is_dir() or not Path(name).parent.is_dir()):
        raise UserError(f"--{flag}: '{name}' is a directory, or lies in none: name a file in one that is there.")


def _check_write(options: argparse.Namespace) -> None:
    """Before the work is done; and the recipe that is read, with its comments, is never written over."""
    if not options.write:
        return
    from hf_recipes.plan.strategy.write import RECIPE, refuse_existing

    target = Path(options.write) / RECIPE
    if options.config and target.exists() and Path(options.config).exists() and target.samefile(options.config):
        raise UserError(f"--write: '{target}' is the recipe itself, which would be lost: name another directory.")
    refuse_existing(Path(options.write), options.overwrite)


def _write(plan: Plan, options: argparse.Namespace) -> None:
    if not options.write:
        return
    from hf_recipes.plan.strategy.write import write_plan

    taken = plan.devices[0].choice.taken
    if taken is None:
        raise CheckFailed(f"nothing fits, so nothing was written to '{options.write}'")
    given = {key: value for key, value in plan.recipe.values.items() if key in plan.recipe.given}
    if not given.get("datasets"):
        given.pop("datasets", None)
    written = write_plan(options.write, taken, given, overwrite=options.overwrite)
    told = sys.stderr if options.json else sys.stdout
    if "datasets" not in given:
        print("\nThe recipe names no data yet: add datasets: to it before it is started.", file=told)
    print("\nWritten: " + ", ".join(str(file) for file in written.files), file=told)
    for line in written.launch_lines:
        print(f"  {line}", file=told)


def _print_machine(machine: Machine | None, options: argparse.Namespace) -> None:
    from dataclasses import asdict

    from hf_recipes.core.files import json_safe
    from hf_recipes.plan.hardware.describe import describe_machine

    assert machine is not None
    print(json.dumps(json_safe(asdict(machine)), indent=2) if options.json else describe_machine(machine))
