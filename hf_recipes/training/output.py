"""Where a run writes, what it records about itself, and how it ended."""

from __future__ import annotations

import errno
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_recipes.core.cores import usable_cores
from hf_recipes.core.errors import CheckFailed, ErrorOfOneRank, Preempted, UserError, file_problem
from hf_recipes.core.files import read_json, write_json
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import is_main
from hf_recipes.core.run_directory import RunDirectory, is_run, list_checkpoints
from hf_recipes.core.secrets import without_secrets
from hf_recipes.core.versions import stack_versions
from hf_recipes.models.precision import Hardware, Precision
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.environment import LAUNCHED_BY_US
from hf_recipes.training.own_code import remember_code
from hf_recipes.training.requeue import check_same_recipe, end_if_finished, newest_run, resume_request, tell_request
from hf_recipes.training.same_run import RESTORED, record_of_run
from hf_recipes.training.trackers import tracker_problem

RUNS_ROOT = Path("runs")
_NO_ROOM = "No space left on device"
_OF_A_RUN = ("data.json", "plan.json", "report.html", "curves.png", "overfit.json")
_OF_A_MODEL = ("config.json", "adapter_config.json")


def choose_output(recipe: Recipe) -> Path:
    """The run directory of a recipe: its `output_dir`; else, on resume, that of the checkpoint or the recipe's newest
    run (``auto``: its newest unfinished one); else a new ``runs/NAME-TIME``.

    Raises:
        UserError: nothing to resume from; the directory holds a model, or another run, which got further than its
            checks, and this one does not resume it; with ``exit_code`` 0: ``auto`` finds the run finished.
    """
    request = resume_request(recipe)
    tell_request(recipe, request)
    path = _place(recipe, request)
    if path.is_file():
        raise UserError(f"output_dir: '{path}' is a file: name a directory.")
    model = next((name for name in _OF_A_MODEL if (path / name).is_file()), None)
    if model and not request:
        raise UserError(f"output_dir: '{path}' holds a model ({model}): name another, so that it stays as it is.")
    foreign = next((name for name in _OF_A_RUN if (path / name).exists()), None)
    if foreign and not (is_run(path) or (path / "status.json").exists() or list_checkpoints(path)):
        raise UserError(f"output_dir: '{path}' holds a {foreign} of no run, which would be written over: name another.")
    if request == "auto":
        check_same_recipe(path, recipe)
        end_if_finished(path, recipe)
    checked = os.environ.get(LAUNCHED_BY_US)  # by the launcher, which has put the last status away since
    if not request and not checked and (is_run(path) or list_checkpoints(path)) and not _never_began(path):
        raise UserError(
            f"output_dir: '{path}' already holds a run: resume it with --resume_from_checkpoint last, or name another."
        )
    return path


def _never_began(path: Path) -> bool:
    """Whether the run in `path` ended with an error before its first step, and left nothing that was trained."""
    try:
        status = read_json(path / "status.json")
        ended = status["code"] != 0 and status["last_step"] == 0
    except (OSError, ValueError, LookupError, TypeError):
        return False
    run = RunDirectory(path)
    return ended and not (list_checkpoints(path) or run.adapter.exists() or run.model.exists())


def _place(recipe: Recipe, request: str | None) -> Path:
    if output := recipe.get("output_dir"):
        return Path(output)
    if request == "last":
        if newest := newest_run(RUNS_ROOT, recipe.name):
            return newest
        raise UserError(
            f"resume_from_checkpoint: no run of '{recipe.name}' under {RUNS_ROOT}/: give its --output_dir, or start "
            "without."
        )
    if request == "auto":
        if unfinished := newest_run(RUNS_ROOT, recipe.name, unfinished=True):
            logger.info("resume_from_checkpoint: auto: going on with '%s', the newest unfinished run.", unfinished)
            return unfinished
        logger.info("resume_from_checkpoint: auto: no unfinished run of '%s' under %s/.", recipe.name, RUNS_ROOT)
    elif request:
        return Path(request).parent
    return RUNS_ROOT / f"{recipe.name}-{time.strftime('%Y%m%d-%H%M%S')}"


def record_run(
    run: RunDirectory,
    recipe: Recipe,
    *,
    base_model: dict[str, Any],
    hardware: Hardware,
    precision: Precision,
    world_size: int,
    **facts: Any,
) -> None:
    """Write run.json, without secrets, and keep which Python the recipe names. On resume, tell which recipe keys differ
    from the run's first start; in a directory whose run never began, tell that it is taken again."""
    if is_run(run.path) and not resume_request(recipe):
        logger.info(
            "output_dir: the run that '%s' held had ended before its first step, this one takes its place.", run.path
        )
    elif is_run(run.path):
        _tell_changes(record_of_run(run.path).get("recipe") or recipe.values, without_secrets(recipe.values))
    remember_code(recipe.get("evaluation"))
    run.write(
        run.run_json,
        {
            "schema": 1,
            "name": recipe.name,
            "recipe": {**without_secrets(recipe.values), "output_dir": str(run.path)},
            "given": sorted(recipe.given),
            "recipe_fingerprint": recipe.fingerprint(),
            "base_model": base_model,
            "hardware": {**asdict(hardware), "cores": usable_cores(), "machine": platform.machine()},
            "precision": asdict(precision),
            "world_size": world_size,
            "seed": recipe.get("seed", 42),
            "versions": stack_versions(),
            **facts,
        },
    )


def _tell_changes(before: dict[str, Any], now: dict[str, Any]) -> None:
    ignored = {"resume_from_checkpoint", "output_dir", "num_processes", "time_limit"}
    ignored |= {key for key in {*before, *now} if key.startswith("preemption_")}
    changed = sorted(key for key in {*before, *now} - ignored if before.get(key) != now.get(key))
    if changed:
        changes = ", ".join(f"{key} {before.get(key)!r} → {now.get(key)!r}" for key in changed)
        logger.warning("The resumed run was started with other settings: %s.", changes)
    if restored := [key for key in changed if key in RESTORED]:
        logger.warning(
            "Without effect on a resumed run: %s (it goes on as the checkpoint has it).", ", ".join(restored)
        )


def write_last_report(run: RunDirectory) -> None:
    """Write the page of a run that has ended; a full disk takes nothing from its result."""
    from hf_recipes.report.page import write_report

    try:
        write_report(run)
    except OSError as error:
        logger.warning("The report is not written: %s", file_problem(error))


@contextmanager
def recorded_end(path: Path) -> Iterator[dict[str, Any]]:
    """Write status.json when the block ends, however it ends; the dict given may be filled with ``last_step``."""
    facts: dict[str, Any] = {"last_step": 0}
    try:
        yield facts
    except (UserError, CheckFailed, Preempted) as error:
        write_status(path, error.exit_code, str(error), facts)
        raise
    except KeyboardInterrupt:
        write_status(path, 130, "interrupted", facts)
        raise
    except BaseException as error:
        if told := tracker_problem(error) or full_disk(error, path):
            write_status(path, UserError.exit_code, told, facts)
            raise ErrorOfOneRank(told) from error  # trackers run, and most is written, on rank 0 alone
        write_status(path, 1, f"crashed with {type(error).__name__}: {' '.join(str(error).split())[:500]}", facts)
        raise
    write_status(path, 0, facts.pop("sentence", "finished"), facts)


def full_disk(error: BaseException, run: Path) -> str | None:
    """One sentence for a disk without room, however it was told (safetensors and tokenizers raise errors of their own);
    None for all other errors."""
    if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT) and _NO_ROOM not in str(error):
        return None
    return (
        f"The disk of '{run}' is full: free some space, see with `hf-recipes verify` what is whole, then go on with "
        "--resume_from_checkpoint last."
    )


def write_status(path: Path, code: int, sentence: str, facts: dict[str, Any]) -> None:
    """Write status.json (rank 0): exit code, one sentence, and what else is known."""
    if not is_main():
        return
    status = {"code": code, "sentence": without_secrets(sentence), "time": time.time(), "pid": os.getpid(), **facts}
    try:
        write_json(path / "status.json", status)
    except OSError as error:  # a full disk must not hide why the run ended
        logger.error("status.json: %s", file_problem(error))
