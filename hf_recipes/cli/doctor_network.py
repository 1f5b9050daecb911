"""`hf-recipes doctor --network`: the network between the ranks of a job, measured or read, and weighed."""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from hf_recipes.core.errors import CheckFailed, UserError, nearest
from hf_recipes.core.files import read_json
from hf_recipes.doctor.network.options import (
    chosen,
    measuring,
    options_for_ranks,
    refuse_figures,
    refuse_unweighed,
)

if TYPE_CHECKING:
    from hf_recipes.doctor.network.measured import Measured
    from hf_recipes.recipe.resolve import Recipe
    from hf_recipes.training.machines import Machine

# What a measurement takes, which has no use where none is made.
_OF_MEASURING = (
    "network", "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port", "largest",
    "patience", "output",
)  # fmt: skip
_MODULE = "hf_recipes.doctor.network"


def run_network(options: argparse.Namespace) -> int:
    """Measure (or read), conclude, print."""
    from hf_recipes.core.files import write_json
    from hf_recipes.doctor.network.outcome import conclude, show
    from hf_recipes.doctor.network.report import as_values

    _refuse_unused(options)
    measuring(options)
    recipe = _recipe(options) if options.config else None
    choice = chosen(options) if recipe is None else None
    measured = _read(options.measured) if options.measured else _measure(options)
    if measured is None:
        return 0  # the first machine tells
    if options.output:
        write_json(Path(options.output), as_values(measured))
    if recipe is not None:
        from hf_recipes.cli.network_choice import network_choice

        with redirect_stdout(sys.stderr):  # libraries talk; standard output is for the answer alone
            choice = network_choice(recipe, len(measured.hosts), len(set(measured.hosts)))
    return show(conclude(measured, choice), as_json=options.json)


def _refuse_unused(options: argparse.Namespace) -> None:
    """Nothing that was given goes without use."""
    if options.recipe_keys and not options.config:
        refuse_unknown(options.recipe_keys[0], options.flags)
    if options.measured:
        for name in _OF_MEASURING:
            if getattr(options, name) not in (None, False):
                raise UserError(
                    f"--{name} is for a measurement, and --measured reads an earlier one: leave one of the two out."
                )
    if options.config:
        refuse_figures(options, "is what the recipe of --config says: leave it out, or the recipe.")
    elif options.recipe_keys:
        raise UserError(f"{options.recipe_keys[0]} is a recipe's key: give the recipe too (--config RECIPE).")


def refuse_unknown(argument: str, flags: Sequence[str]) -> None:
    """Say that an argument is nothing that the verb takes.

    Args:
        argument: as given.
        flags: the verb's own, without their dashes.

    Raises:
        UserError: it is neither an option nor a recipe's key.
    """
    from hf_recipes.recipe.key_table import load_key_table

    keys, name = load_key_table(), argument.removeprefix("--").partition("=")[0].partition(".")[0]
    if not argument.startswith("--") or name not in keys:
        raise UserError(
            f"'{argument}' is neither an option of `hf-recipes doctor` nor a recipe's key"
            f"{nearest(name, [*flags, *keys])}: see `hf-recipes doctor --help`."
        )


def _recipe(options: argparse.Namespace) -> Recipe:
    from hf_recipes.recipe.resolve import load_recipe

    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    keys = list(options.recipe_keys)
    if options.strategy is not None:
        keys += ["--strategy", options.strategy]
    recipe = load_recipe(options.config, keys)
    if (strategy := str(recipe.get("strategy", "auto"))) != "auto":
        refuse_unweighed(strategy)
    return recipe


def _read(name: str) -> Measured:
    from hf_recipes.core.files import read_json
    from hf_recipes.doctor.network.measured import read_measured

    try:
        values = read_json(Path(name))
    except ValueError as error:
        raise UserError(f"--measured: '{name}' is no file of --output: measure again.") from error
    return read_measured(values, name)


def _measure(options: argparse.Namespace) -> Measured | None:
    """Start this machine's ranks; what they measured, None on all machines but the first.

    Raises:
        UserError: the numbers do not fit, or the ranks refused them.
        CheckFailed: the ranks failed.
    """
    from hf_recipes.doctor.network.measured import read_measured
    from hf_recipes.doctor.network.roll_call import find_first
    from hf_recipes.training.machines import place_of

    local, machine = _count(options.num_processes or "2", "num_processes"), place_of(vars(options), None)
    if local * machine.count < 2:
        raise UserError("--num_processes: one process has no network: give 2 or more.")
    if machine.main_ip:
        patience = measuring(options).patience_seconds
        find_first(machine.main_ip, is_first=machine.rank == 0, patience_seconds=patience)
    with tempfile.TemporaryDirectory(prefix="hf_recipes_doctor_") as folder:
        file = Path(folder) / "network.json"
        codes = _run_ranks(machine, local, [*options_for_ranks(options), "--output", str(file)])
        if UserError.exit_code in codes:
            raise UserError("the network was not measured; the ranks said why.")
        if any(codes):
            raise CheckFailed(
                f"a rank failed with exit code {next(code for code in codes if code)}; its words are above."
            )
        if machine.rank:
            return None
        return read_measured(read_json(file), "the measurement")


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


def _count(text: str, name: str) -> int:
    if not text.isdecimal() or len(text) > 5 or int(text) < 1:
        raise UserError(f"--{name}: '{text[:20]}' is no whole number from 1 to 99999.")
    return int(text)
