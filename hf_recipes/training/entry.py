"""What each rank runs: recipe in, exit code out. The recipe is checked before torch and transformers are imported."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hf_recipes.checkpoints.lock import TakenDirectory
from hf_recipes.checkpoints.preemption.stopped import stopped_outside
from hf_recipes.core.errors import CheckFailed, ErrorOfOneRank, Preempted, UserError
from hf_recipes.core.files import write_json
from hf_recipes.core.log import show_on_console
from hf_recipes.core.ranks import rank
from hf_recipes.core.stop_signals import StopListener
from hf_recipes.doctor.network.roll_call import JOB_PATIENCE_SECONDS, Absent, Place, roll_call
from hf_recipes.training.environment import LAUNCHED_BY_US, MACHINE_END, leave_with_parent


def run_on_ranks(train: str, arguments: Sequence[str]) -> int:
    """Load the recipe named by ``--config`` with the keys after it, and train.

    Args:
        train: ``module:function`` that takes the recipe; imported only once the recipe is sound.
        arguments: The command line.

    Returns:
        The exit code; 0 in any case under `hf-recipes sft`, which reads status.json, because a launcher answers a
        rank's non-zero exit with a traceback of its own.
    """
    show_on_console(rank())
    if parent := os.environ.get(LAUNCHED_BY_US):
        leave_with_parent(int(parent))
    listener = StopListener(("SIGTERM", "SIGUSR1"), at_once=_leave)  # the training's own stands above it
    listener.listen()
    try:
        config, keys = split_config(arguments)
        _train(train, config, keys)
    except (UserError, CheckFailed, Preempted) as error:
        if rank() == 0 or (isinstance(error, Absent) and int(os.environ.get("LOCAL_RANK", "0")) == 0):
            print(f"hf-recipes: {error}", file=sys.stderr)
        if rank() == 0:
            _record_unrecorded(error, arguments)
        _leave_for_launcher(error)
        alone = isinstance(error, ErrorOfOneRank) and int(os.environ.get("WORLD_SIZE", "1")) > 1
        told = os.environ.get(LAUNCHED_BY_US) and not isinstance(error, TakenDirectory)  # else there is no status
        told = told and not alone
        return 0 if told else error.exit_code
    except KeyboardInterrupt:
        return 130
    finally:
        if not listener.reason:  # else the process ends now, and one more signal must not hinder it
            listener.close()
    return 0


def _leave(reason: str) -> None:
    raise Preempted(stopped_outside(reason))


def _record_unrecorded(error: BaseException, arguments: Sequence[str]) -> None:
    """`hf-recipes sft` reads status.json, and a run that is stopped before it knew its directory has written none."""
    if not isinstance(error, Preempted) or not os.environ.get(LAUNCHED_BY_US) or "--output_dir" not in arguments[:-1]:
        return
    status = Path(arguments[list(arguments).index("--output_dir") + 1]) / "status.json"
    if not status.is_file():
        status.parent.mkdir(parents=True, exist_ok=True)
        write_json(status, {"code": error.exit_code, "sentence": str(error), "last_step": 0, "time": time.time()})


def _leave_for_launcher(error: UserError | CheckFailed | Preempted) -> None:
    """A launcher on a machine that is not the first finds no status.json."""
    if (file := os.environ.get(MACHINE_END)) and os.environ.get("LOCAL_RANK", "0") == "0":
        write_json(Path(file), {"code": error.exit_code, "sentence": str(error)})


def split_config(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Take ``--config PATH_OR_NAME`` out of the arguments; the rest are recipe keys. Raises `UserError` without one."""
    rest = list(arguments)
    for position, argument in enumerate(rest):
        if argument == "--config" and position + 1 < len(rest):
            return rest[position + 1], rest[:position] + rest[position + 2 :]
        if argument.startswith("--config="):
            return argument.removeprefix("--config="), rest[:position] + rest[position + 1 :]
    raise UserError("No recipe given: write --config PATH_OR_NAME (`hf-recipes ls` lists the shipped ones).")


def _wait_for_all(patience_seconds: float) -> None:
    """Where each rank was started on its own (Kubernetes, srun). Torch's launchers start ranks once all machines have
    come."""
    place = Place.of()
    if place is not None and place.ranks > 1 and "TORCHELASTIC_RUN_ID" not in os.environ:
        roll_call(place, patience_seconds)


def _train(train: str, config: str, keys: list[str]) -> None:
    from hf_recipes.recipe.resolve import load_recipe

    recipe = load_recipe(config, keys)
    _wait_for_all(float(recipe.get("ddp_timeout") or JOB_PATIENCE_SECONDS))
    module, function = train.split(":")
    run = getattr(importlib.import_module(module), function)
    try:
        run(recipe)
    finally:
        torch = sys.modules.get("torch")  # a run that is stopped early has perhaps not imported it
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
