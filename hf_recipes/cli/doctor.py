"""`hf-recipes doctor`: what a run stands on, looked at before it starts."""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.doctor.network.options import add_measuring, add_strategy, chosen, measuring, options_for_ranks

if TYPE_CHECKING:
    from hf_recipes.doctor.network.options import Chosen
    from hf_recipes.training.machines import Machine

HELP = """Measure the network between the ranks of a job, and say whether a strategy can live with it.

Latency and bandwidth of all_reduce, all_gather, reduce_scatter and broadcast over message sizes, by nccl or gloo, as
nccl-tests tells them (algorithm and bus bandwidth), then each link between two ranks; links far slower than others are
named. With --strategy and figures, or --config RECIPE: exit code 1 when communication would take more than half of a
step. On several machines the same command on each, with its own --machine_rank:

  hf-recipes doctor --network --num_processes 2 --num_machines 2 --machine_rank 0 --main_process_ip FIRST_NODE

or under any launcher: accelerate launch … -m hf_recipes.doctor.network --strategy zero3 --parameters 7e9 …
"""
TAKES_RECIPE_KEYS = True
FLAGS = (
    "network", "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "config",
    "measured", "largest", "patience", "output", "json", "strategy", "parameters", "trained_parameters",
    "step_seconds", "passes", "layers", "hidden_size", "tokens",
)  # fmt: skip
_MODULE = "hf_recipes.doctor.network"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is measured, where, and what it is held against."""
    parser.add_argument("--network", action="store_true", help="measure the network between ranks")
    parser.add_argument("--num_processes", default="2", metavar="N", help="ranks on this machine (default 2)")
    parser.add_argument("--num_machines", metavar="N", help="machines (default 1)")
    parser.add_argument("--machine_rank", metavar="R", help="number of this machine, from 0")
    parser.add_argument("--main_process_ip", metavar="HOST", help="the first machine, as seen from all")
    parser.add_argument("--main_process_port", metavar="PORT", help="a free port of the first machine (29500)")
    parser.add_argument("--measured", metavar="FILE", help="measure nothing: what an earlier --output FILE says")
    parser.add_argument("--config", metavar="RECIPE", help="hold the network against this recipe's strategy")
    add_measuring(parser)
    add_strategy(parser)


def run(options: argparse.Namespace) -> int:
    """Measure (or read), conclude, print."""
    from hf_recipes.cli.flags import refuse_misspelt_flags
    from hf_recipes.core.files import write_json
    from hf_recipes.doctor.network.outcome import conclude, show

    refuse_misspelt_flags("doctor", FLAGS, options.recipe_keys)
    if not options.network and not options.measured:
        raise UserError("Nothing to look at: write --network (`hf-recipes doctor --help`).")
    if options.recipe_keys and not options.config:
        raise UserError(f"{options.recipe_keys[0]} is a recipe's key: give the recipe too (--config RECIPE).")
    measuring(options)
    choice = None if options.config else chosen(options)
    values = _read(options.measured) if options.measured else _measure(options)
    if values is None:
        return 0  # the first machine tells
    if options.output and not options.measured:
        write_json(Path(options.output), values)
    if options.config:
        with redirect_stdout(sys.stderr):  # libraries talk; standard output is for the answer alone
            choice = _of_recipe(options, len(values["hosts"]), len(set(values["hosts"])))
    return show(conclude(values, choice, options.measured or "the measurement"), as_json=options.json)


def _read(name: str) -> dict[str, Any]:
    from hf_recipes.core.files import read_json

    try:
        values = read_json(Path(name))
        return {**values, "hosts": list(values["hosts"])}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"--measured: '{name}' is no file of --output: measure again.") from error


def _measure(options: argparse.Namespace) -> dict[str, Any] | None:
    """Start this machine's ranks; what they measured, None on all machines but the first.

    Raises:
        UserError: the numbers do not fit, or the ranks refused them.
        CheckFailed: the ranks failed.
    """
    from hf_recipes.training.machines import place_of

    local, machine = _count(options, "num_processes"), place_of(vars(options), None)
    if local * machine.count < 2:
        raise UserError("--num_processes: one process has no network: give 2 or more.")
    with tempfile.TemporaryDirectory(prefix="hf_recipes_doctor_") as folder:
        file = Path(folder) / "network.json"
        codes = _run_ranks(machine, local, [*options_for_ranks(options), "--output", str(file)])
        if UserError.exit_code in codes:
            raise UserError("the network was not measured; the ranks said why.")
        if any(codes):
            raise CheckFailed(
                f"a rank failed with exit code {next(code for code in codes if code)}; its words are above."
            )
        return json.loads(file.read_text(encoding="utf-8")) if machine.rank == 0 else None


def _run_ranks(machine: Machine, local: int, arguments: list[str]) -> list[int]:
    """Start this machine's ranks as launchers do, wait for all of them; their exit codes."""
    from hf_recipes.training.launch import launch_environment

    environment = {
        **launch_environment(local),
        "MASTER_ADDR": machine.main_ip or "127.0.0.1",
        "MASTER_PORT": str(machine.main_port if machine.count > 1 else _free_port()),
        "WORLD_SIZE": str(local * machine.count),
        "LOCAL_WORLD_SIZE": str(local),
    }
    command = [sys.executable, "-m", _MODULE, *arguments]
    started = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(machine.rank * local + number), "LOCAL_RANK": str(number)},
            stdout=subprocess.DEVNULL,
        )
        for number in range(local)
    ]
    try:
        return [process.wait() for process in started]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


def _count(options: argparse.Namespace, name: str) -> int:
    text = getattr(options, name)
    if not text.isdecimal() or len(text) > 5 or int(text) < 1:
        raise UserError(f"--{name}: '{text[:20]}' is no whole number from 1 to 99999.")
    return int(text)


def _of_recipe(options: argparse.Namespace, ranks: int, machines: int) -> Chosen:
    from hf_recipes.cli.network_choice import network_choice
    from hf_recipes.recipe.resolve import load_recipe

    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    keys = list(options.recipe_keys)
    if options.strategy is not None:
        keys += ["--strategy", options.strategy]
    return network_choice(load_recipe(options.config, keys), ranks, machines)
