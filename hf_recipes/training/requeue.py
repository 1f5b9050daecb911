"""Whether a run begins or goes on: what the recipe asks for, and what a start by a scheduler or an elastic launcher
means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from hf_recipes.core.errors import NothingToDo, UserError
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.core.run_directory import RunDirectory, is_run
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.same_run import record_of_run

# Counted up by torchrun (--max-restarts) and Slurm (--requeue) each time they start the same command again.
_RESTARTS = {
    "TORCHELASTIC_RESTART_COUNT": "the launcher started its ranks again",
    "SLURM_RESTART_COUNT": "the job was requeued",
}
# A finished run goes on only when one of these was changed.
_LENGTH_KEYS = ("max_steps", "num_train_epochs")


def resume_request(recipe: Recipe, environment: Mapping[str, str] = os.environ) -> str | None:
    """What `resume_from_checkpoint` comes to: None (start), ``last``, ``auto`` or a path.

    A restarted job whose recipe does not give the key goes on by itself, as with ``auto``.
    """
    value = recipe.get("resume_from_checkpoint")
    if value in (True, "true", "last"):
        return "last"
    if value in (None, False, "", "false", "off"):
        is_given = "resume_from_checkpoint" in recipe.given
        return "auto" if not is_given and restart_reason(environment) else None
    return str(value)


def restart_reason(environment: Mapping[str, str] = os.environ) -> str | None:
    """Why this process is not the first of its job, with the variable that says so; None where it is the first."""
    for name, reason in _RESTARTS.items():
        count = environment.get(name, "")
        if count.isdigit() and int(count) > 0:
            return f"{reason} ({name}={count})"
    return None


def tell_request(recipe: Recipe, request: str | None, environment: Mapping[str, str] = os.environ) -> None:
    """Say that a run goes on although its recipe does not say so, and what a later restart will stumble over."""
    reason = restart_reason(environment)
    if request == "auto" and reason and not recipe.get("resume_from_checkpoint"):
        logger.info("Since %s, this goes on as with resume_from_checkpoint: auto.", reason)
    restarts = environment.get("TORCHELASTIC_MAX_RESTARTS", "")
    if restarts.isdigit() and int(restarts) and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        logger.warning(
            "After a restart torchrun may hand its ranks the addresses of those that are gone (pytorch issue 135712): "
            "start it with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and --standalone or --rdzv_backend c10d."
        )


def is_finished(path: Path) -> bool:
    """Whether the run there ended well, and its result is there."""
    try:
        RunDirectory(path).result  # noqa: B018 (raises where there is none)
        return read_json(path / "status.json")["code"] == 0
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return False


def check_same_recipe(path: Path, recipe: Recipe) -> None:
    """Raise `UserError` where `path` holds a run of another recipe, which ``auto`` must neither go on with nor take for
    this one's."""
    name = _name_of(path)
    if name not in (None, recipe.name):
        raise UserError(
            f"output_dir: '{path}' holds a run of '{name}', not of '{recipe.name}': name another, or say "
            "resume_from_checkpoint: last to go on with it."
        )


def end_if_finished(path: Path, recipe: Recipe) -> None:
    """End a start with ``auto`` that finds nothing to do, with exit code 0: a job that is requeued must not loop.

    Raises:
        NothingToDo: the run is finished, and the recipe asks for no other length.
    """
    if not is_finished(path) or _other_length(path, recipe):
        return
    raise NothingToDo(
        f"'{path}' is finished ({read_json(path / 'status.json').get('sentence', '')}), nothing is left to do: for "
        "another run name another output_dir."
    )


def _other_length(path: Path, recipe: Recipe) -> bool:
    before = record_of_run(path).get("recipe") or {}
    return any(before.get(key) != recipe.values.get(key) for key in _LENGTH_KEYS)


def newest_run(root: Path, name: str, *, unfinished: bool = False) -> Path | None:
    """The newest run of the recipe `name` under `root`, or the newest that did not end well; None without one."""
    found = [path for path in root.glob(f"{name}-*") if is_run(path) and _name_of(path) in (None, name)]
    if unfinished:
        found = [path for path in found if not is_finished(path)]
    return max(found, key=lambda path: (path / "run.json").stat().st_mtime, default=None)


def _name_of(path: Path) -> str | None:
    """The recipe a run is of; None where its run.json does not say."""
    name = record_of_run(path).get("name")
    return name if isinstance(name, str) else None
