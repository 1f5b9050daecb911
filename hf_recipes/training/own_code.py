"""Whose Python an evaluation runs: that of functions which a recipe trained on this machine named, or which the user
allows. A run directory may be a stranger's, and its run.json can name any file."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.cache import cache_directory
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json, write_json

NAME = "own_code.json"
_KEPT = 1000  # files, the newest


def remember_code(evaluation: Any) -> None:
    """Keep, in the cache directory of this user, that the function of a recipe's ``evaluation:`` is the user's own.

    Where it cannot be written, `evaluate` asks.
    """
    file = code_file(evaluation)
    if file is None or file in (known := _known()):
        return
    with contextlib.suppress(OSError):
        write_json(cache_directory() / NAME, {"files": [*known, file][-_KEPT:]})


def check_code(run: Path, facts: Any, *, allowed: bool) -> None:
    """Refuse a function that run.json names and no recipe trained here did.

    Args:
        run: the run directory.
        facts: its run.json.
        allowed: the user says that it may run; it is remembered.

    Raises:
        UserError: it may not.
    """
    recipe = facts.get("recipe") if isinstance(facts, Mapping) else None
    evaluation = recipe.get("evaluation") if isinstance(recipe, Mapping) else None
    if allowed:
        return remember_code(evaluation)
    file = code_file(evaluation)
    if file is not None and file not in _known():
        raise UserError(
            f"{run} names Python to be run, {file}, which no recipe trained on this machine named: read that file, "
            "then say --allow-code (in Python allow_code=True)."
        )
    return None


def code_file(evaluation: Any) -> str | None:
    """The file of ``evaluation.function``, absolute and without links; None without one."""
    function = evaluation.get("function") if isinstance(evaluation, Mapping) else None
    if not isinstance(function, str) or ":" not in function or "\0" in function:
        return None
    return str(Path(function.rpartition(":")[0]).resolve())


def _known() -> list[str]:
    try:
        files = read_json(cache_directory() / NAME)["files"]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [file for file in files if isinstance(file, str)] if isinstance(files, list) else []
