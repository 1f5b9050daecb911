"""`hf-recipes doctor`: what a run stands on before it starts, and why one went wrong: its folder, or any log."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.doctor.network.options import add_measuring, add_strategy

HELP = """Look at this machine, at a run, or at a log of any trainer, and say what is wrong and what to do.

  hf-recipes doctor                    this machine: versions, devices, dtypes, kernels, disks, limits, network
  hf-recipes doctor RUN_DIR            a run: causes ranked, with the keys to change; also another tool's output
                                       directory with a trainer_state.json
  hf-recipes doctor FILE.log           a log of transformers, TRL, LLaMA-Factory, Axolotl, ms-swift, DeepSpeed or
  … 2>&1 | hf-recipes doctor -         torchrun: the root fault named, with cause and cure
  hf-recipes doctor --json             for an issue: no secrets, no names

Exit code 1: this machine has an error, the run is spoilt, or the log holds a known fault; else 0.

With --network the network between the ranks of a job is measured: latency and bandwidth of all_reduce, all_gather,
reduce_scatter and broadcast over message sizes, by nccl or gloo, as nccl-tests tells them (algorithm and bus
bandwidth), then each link between two ranks; links far slower than others are named. With --strategy and figures, or
--config RECIPE: exit code 1 when communication would take more than half of a step. On several machines the same
command on each, with its own --machine_rank:

  hf-recipes doctor --network --num_processes 2 --num_machines 2 --machine_rank 0 --main_process_ip FIRST_NODE

or under any launcher: accelerate launch … -m hf_recipes.doctor.network --strategy zero3 --parameters 7e9 …
"""
TAKES_RECIPE_KEYS = True
TAKES_TARGET = True  # a run or a log, in the place where others take a recipe
FLAGS = (
    "quick", "network", "num_processes", "num_machines", "machine_rank", "main_process_ip", "main_process_port",
    "config", "measured", "largest", "patience", "output", "json", "strategy", "parameters", "trained_parameters",
    "step_seconds", "passes", "layers", "hidden_size", "tokens",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is looked at; of the network what is measured, where, and what it is held against.

    The directory or file is taken from what argparse leaves over: beside recipe keys it could not tell their values
    from it.
    """
    parser.usage = "hf-recipes doctor [RUN_DIR | FILE | -] [options]"
    parser.add_argument("--quick", action="store_true", help="this machine without what needs torch (some seconds)")
    parser.add_argument("--network", action="store_true", help="measure the network between ranks")
    parser.add_argument("--num_processes", metavar="N", help="ranks on this machine (default 2)")
    parser.add_argument("--num_machines", metavar="N", help="machines (default 1)")
    parser.add_argument("--machine_rank", metavar="R", help="number of this machine, from 0")
    parser.add_argument("--main_process_ip", metavar="HOST", help="the first machine, as seen from all")
    parser.add_argument("--main_process_port", metavar="PORT", help="a free port of the first machine (29500)")
    parser.add_argument("--measured", metavar="FILE", help="measure nothing: what an earlier --output FILE says")
    parser.add_argument("--config", metavar="RECIPE", help="hold the network against this recipe's strategy")
    add_measuring(parser)
    add_strategy(parser)


def run(options: argparse.Namespace) -> int:
    """Find out what is to be looked at, look, and print."""
    from hf_recipes.cli.flags import refuse_misspelt_flags

    refuse_misspelt_flags("doctor", FLAGS, options.recipe_keys)
    if options.network or options.measured:
        from hf_recipes.cli.doctor_network import run_network

        options.flags = FLAGS
        return run_network(options)
    target = _target(options)
    if target is None:
        return _environment(options)
    if options.quick:
        raise UserError("--quick is for this machine, and a run or log was given: leave one of the two out.")
    if target != "-" and not Path(target).exists():
        raise UserError(f"'{target}' is neither a run directory nor a log: give one, or - for standard input.")
    if target != "-" and (folder := _run_of(Path(target))) is not None:
        return _run_directory(folder, options.json)
    return _log(target, options.json)


def _target(options: argparse.Namespace) -> str | None:
    """The directory or file that was given; anything else that was given is refused."""
    from hf_recipes.cli.doctor_network import refuse_unknown

    given = [name for name in FLAGS if name not in ("quick", "json") and getattr(options, name) not in (None, False)]
    if given:
        raise UserError(f"--{given[0]} is for the network: write --network too (`hf-recipes doctor --help`).")
    flags = [argument for argument in options.recipe_keys if argument.startswith("-") and argument != "-"]
    if flags:
        refuse_unknown(flags[0], FLAGS)
        raise UserError(f"{flags[0]} is a recipe's key, and doctor reads none here: leave it out.")
    if len(options.recipe_keys) > 1:
        raise UserError(f"doctor takes one run or log at a time, not also '{options.recipe_keys[1]}'.")
    if not options.recipe_keys and _is_file(sys.stdin):  # it may as well be the script that this stands in
        logger.warning("This looks at the machine; to read the log on standard input: hf-recipes doctor - < FILE")
    return options.recipe_keys[0] if options.recipe_keys else None


def _is_file(stream: Any) -> bool:
    """Whether a file was redirected into a stream (``doctor < train.log``)."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (AttributeError, OSError, ValueError):  # closed, or replaced by something that is no file
        return False


def _run_of(path: Path) -> Path | None:
    """The run's directory, also where one of its own files was given; None for a log."""
    if path.is_dir():
        return path
    return path.parent if path.name in ("run.json", "events.jsonl", "trainer_state.json") else None


def _environment(options: argparse.Namespace) -> int:
    from hf_recipes.doctor.environment.check import as_report, findings_of, gather_facts
    from hf_recipes.doctor.findings import exit_code, render_findings

    with redirect_stdout(sys.stderr):
        facts = gather_facts(quick=options.quick)
    findings = findings_of(facts)
    _print(as_report(findings, facts) if options.json else render_findings(findings), options.json)
    return exit_code(findings)


def _run_directory(path: Path, as_json: bool) -> int:
    from hf_recipes.doctor.run.diagnosis import diagnose_run, render

    found = diagnose_run(path)
    _print(found.as_values() if as_json else render(found), as_json)
    return int(not found.healthy)


def _log(target: str, as_json: bool) -> int:
    from hf_recipes.doctor.log.diagnosis import diagnose_log, render

    if target == "-":
        if sys.stdin is None:  # closed by whoever started this
            raise UserError("- is standard input, and it is closed here: give the log's file.")
        found = diagnose_log(sys.stdin.buffer)
    else:
        with open(target, "rb") as file:
            found = diagnose_log(file)
    _print(found.as_values() if as_json else render(found), as_json)
    return found.exit_code


def _print(answer: Any, as_json: bool) -> None:
    from hf_recipes.core.files import json_safe
    from hf_recipes.core.printable import print_drawn, printable
    from hf_recipes.doctor.private import Hider

    answer = Hider.of_this_machine().within(answer)
    text = json.dumps(json_safe(answer), indent=2) if as_json else printable(answer)
    print_drawn(lambda plain: text, text)
