"""From a recipe to its `PreemptionGuard`, and from a run that it stopped to its end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from hf_recipes.checkpoints.preemption.deadline import seconds_of, slurm_end
from hf_recipes.checkpoints.preemption.guard import PreemptionGuard
from hf_recipes.checkpoints.preemption.notice import NoticePoll
from hf_recipes.checkpoints.preemption.stopped import saved_end
from hf_recipes.core.errors import Preempted
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main
from hf_recipes.training.environment import LAUNCHED_BY_US
from hf_recipes.training.output import write_status
from hf_recipes.training.preemption_keys import check_preemption_keys

if TYPE_CHECKING:
    from hf_recipes.training.setup import Setup


def recipe_guard(setup: Setup) -> PreemptionGuard:
    """The guard that the recipe's keys ask for.

    Raises:
        UserError: a key's value is no length of time.
    """
    ours = setup.ours
    check_preemption_keys(setup.recipe)
    if setup.arguments.enable_jit_checkpoint:
        setup.arguments.enable_jit_checkpoint = False
        logger.info("enable_jit_checkpoint: the checkpoint at SIGTERM is made anyway, on all ranks at the same step.")
    deadline, reason = choose_deadline(ours.time_limit, os.environ, time.time())
    first_here = int(os.environ.get("LOCAL_RANK", "0")) == 0
    notice = None
    if ours.preemption_command and first_here:
        notice = NoticePoll(ours.preemption_command, ours.preemption_poll_seconds)
    return PreemptionGuard(
        deadline,
        reason,
        notice,
        ours.preemption_grace_seconds,
        at_expiry=lambda code, sentence: write_status(setup.run.path, code, sentence, {}),
        until_closed=True,
    )


def choose_deadline(time_limit: str | None, environment: Mapping[str, str], now: float) -> tuple[float | None, str]:
    """The earlier of the recipe's `time_limit`, counted from the start of the command, and the end of the Slurm job, in
    Unix seconds, and what to call it.

    Raises:
        UserError: `time_limit` is no length of time.
    """
    known: list[tuple[float, str]] = []
    if time_limit is not None:
        known.append((started_at(environment) + seconds_of(time_limit), f"time_limit {time_limit}"))
    if (end := slurm_end(environment, now)) is not None:
        known.append((end, "the end of the Slurm job"))
        logger.info("Slurm ends this job in %s: the run saves and stops in time.", _readable(end - now))
    return min(known, default=(None, "the deadline"))


def started_at(environment: Mapping[str, str]) -> float:
    """Unix seconds at which the command was started: `hf-recipes`, or the launcher of this rank, or this process."""
    parent = environment.get(LAUNCHED_BY_US) or (os.getppid() if "TORCHELASTIC_RUN_ID" in environment else os.getpid())
    try:
        return float(psutil.Process(int(parent)).create_time())
    except (psutil.Error, ValueError):
        return time.time()


def raise_if_preempted(trainer: Any, verifies: bool) -> None:
    """End a run that its guard has stopped; to be called on every rank.

    Raises:
        Preempted: it is saved.
        CheckFailed: it is not.
    """
    guard = find_guard(trainer)
    if guard and (reason := guard.preempted):
        output, step = Path(trainer.args.output_dir), trainer.state.global_step
        raise Preempted(from_main(lambda: saved_end(output, step, reason, verifies)))


def find_guard(trainer: Any) -> PreemptionGuard | None:
    """The trainer's guard, if it has one."""
    return next((each for each in trainer.callback_handler.callbacks if isinstance(each, PreemptionGuard)), None)


def _readable(seconds: float) -> str:
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{int(seconds)} s"
