"""`hf-recipes profile`: where the time and memory of a recipe's steps go."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from hf_recipes.cli.flags import refuse_misspelt_flags, require_recipe
from hf_recipes.core.errors import UserError

if TYPE_CHECKING:
    pass

HELP = """Run a few real steps of a recipe and show where their time and memory go: data, forward, loss, backward,
optimizer, communication; tokens a second, MFU, the dtypes matrix products really ran in, the operators that take most
time; and a list of questions answered yes or no, each no with what to write into the recipe.

Nothing is kept but what is asked for: the result of these steps is thrown away. The run has 2 steps of warm-up, then
--steps timed ones, then as many traced ones. Any recipe key can be given as --key value.
"""
TAKES_RECIPE_KEYS = True
STEPS = 10
FLAGS = ("config", "steps", "output", "trace", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``--config``, ``--steps``, ``--output``, ``--trace``, ``--json``."""
    parser.add_argument("--config", metavar="RECIPE", help="a recipe file, or the name of a shipped recipe")
    parser.add_argument("--steps", default=str(STEPS), metavar="N", help=f"steps to measure (default {STEPS})")
    parser.add_argument("--output", metavar="DIR", help="keep profile.json, trace.json and the run's log there")
    parser.add_argument(
        "--trace", metavar="FILE", help="write the trace there, for chrome://tracing or ui.perfetto.dev"
    )
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")


def run(options: argparse.Namespace) -> int:
    """Profile the recipe and print what was found."""
    refuse_misspelt_flags("profile", FLAGS, options.recipe_keys)
    require_recipe(options.config)
    steps = _step_count(options.steps)
    output, trace = _free_directory(options.output), _trace_path(options.trace)
    from hf_recipes.data.check import check_sources
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.classifier_recipe import check_no_classifier

    recipe = load_recipe(options.config, options.recipe_keys)
    check_sources(recipe.values["datasets"], recipe.get("bad_rows", "drop"))
    check_no_classifier(recipe, "profile")
    _quiet()
    from hf_recipes.core.files import json_safe, write_json
    from hf_recipes.core.ranks import is_main
    from hf_recipes.profiling.advice import answers, caveat
    from hf_recipes.profiling.run import profile_recipe
    from hf_recipes.profiling.terminal import render

    # The Trainer prints its losses; standard output is for the profile alone.
    with tempfile.TemporaryDirectory(prefix="hf_recipes_profile_") as scratch, redirect_stdout(sys.stderr):
        directory = output or Path(scratch)
        profile = profile_recipe(recipe, steps, directory, trace or (output and output / "trace.json"))
    if not is_main():
        return 0
    checks = answers(profile)
    values = json_safe({**profile.as_dict(), "checks": [vars(answer) for answer in checks], "caveat": caveat(profile)})
    if output:
        write_json(output / "profile.json", values)
    print(json.dumps(values, ensure_ascii=False, indent=2) if options.json else render(profile, checks))
    return 0


def _step_count(text: str) -> int:
    """Read by hand: argparse would put its own words around an error."""
    count = int(text) if text.strip().isdecimal() else 0
    if count < 1:
        raise UserError(f"--steps: '{text}' is not a number of steps: give a whole number of 1 or more.")
    return count


def _quiet() -> None:
    """Silence what the tracer says of itself, and of memory from before it began; read when torch is loaded."""
    from hf_recipes.training.launch import has_accelerator

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if not has_accelerator():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def _free_directory(name: str | None) -> Path | None:
    if name is None:
        return None
    path = Path(name)
    if path.is_file() or (path.is_dir() and any(path.iterdir())):
        raise UserError(f"--output: '{name}' is a file or holds files already: name a new directory.")
    return path


def _trace_path(name: str | None) -> Path | None:
    """Where the trace goes, checked before the work is done."""
    if name is None:
        return None
    path = Path(name)
    if path.is_dir():
        raise UserError(f"--trace: '{name}' is a directory: name a file in it.")
    if not path.parent.is_dir():
        raise UserError(f"--trace: there is no directory '{path.parent}' to write the trace into: make it first.")
    return path
