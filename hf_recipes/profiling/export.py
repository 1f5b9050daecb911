"""The trace as a file that is whole, or one sentence about why it is not."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import staged_beside
from hf_recipes.profiling.trace import Trace, read_trace

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE = b"\0" * 2**16


def staging_path(kept: Path | None, scratch: Path) -> Path:
    """Where torch may write a trace that is to end up in `kept`: beside it, or under `scratch` where nothing is kept
    or `kept` is a device or pipe, in whose place torch would put a file."""
    if kept is None or (kept.exists() and not kept.is_file()):
        return scratch
    kept = kept.resolve()
    return staged_beside(kept, "json")


def export_trace(profiler: Any, staged: Path, kept: Path | None) -> Trace:
    """Let a stopped `torch.profiler.profile` write its trace to `staged`, read it, and put it into `kept`.

    torch writes beside the file and renames, and tells nobody when that fails, so what it wrote is looked at.

    Raises:
        UserError: it cannot be written, with the reason (a full disk, no permission).
    """
    try:
        staged.parent.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(staged))
        trace = _read_whole(staged)
        if kept is not None:
            _keep(staged, kept)
        return trace
    except OSError as error:
        raise UserError(_sentence(kept or staged, error)) from None
    finally:
        if kept is not None:
            staged.unlink(missing_ok=True)
        _partial(staged).unlink(missing_ok=True)


def _read_whole(path: Path) -> Trace:
    try:
        return read_trace(path)
    except (FileNotFoundError, json.JSONDecodeError):
        raise _reason(path) from None


def _partial(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp")  # torch's own name for it


def _reason(path: Path) -> OSError:
    """Why a trace was cut: what the system says when Python writes on where torch stopped."""
    cut = path if path.exists() else _partial(path)
    try:
        with open(cut, "ab", buffering=0) as file:
            if file.write(_PROBE) == len(_PROBE):
                os.fsync(file.fileno())
                return OSError(errno.EIO, "torch wrote only a part of it")
            file.write(_PROBE)  # what hindered the rest of the first
    except OSError as error:
        return error
    return OSError(errno.EIO, "torch wrote only a part of it")


def _keep(staged: Path, kept: Path) -> None:
    if kept.exists() and not kept.is_file():
        with open(staged, "rb") as source, open(kept, "wb") as target:
            shutil.copyfileobj(source, target)
    else:
        staged.replace(kept.resolve())


def _sentence(path: Path, error: OSError) -> str:
    if error.errno in _FULL:
        return f"The trace cannot be written to '{path}': the disk is full; free some space, or name another --trace."
    return f"The trace cannot be written to '{path}': {error.strerror or error}; name another --trace."
