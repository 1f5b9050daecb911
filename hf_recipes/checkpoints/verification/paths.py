"""Which files of a checkpoint may be opened: regular ones inside it, and what the Hub's cache links to."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from hf_recipes.core.links import why_leads_out

_STAGED = re.compile(r"^\..*\.tmp$")
_CHECKPOINT = re.compile(r"^checkpoint-\d+$")


def walk_files(directory: Path) -> tuple[list[str], dict[str, str]]:
    """The files of a checkpoint that may be opened, and the entries that may not, each with the reason.

    Both by path relative to `directory`, without staged files, hidden directories, and checkpoints inside (for an
    output directory that holds both).
    """
    root = directory.resolve()
    names: list[str] = []
    refused: dict[str, str] = {}

    def unreadable(error: OSError) -> None:
        name = Path(error.filename or directory).relative_to(directory).as_posix()
        refused[name] = f"cannot be read ({error.strerror})"

    for folder, subfolders, files in os.walk(directory, onerror=unreadable):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and not _CHECKPOINT.match(name)]
        links = [name for name in subfolders if Path(folder, name).is_symlink()]
        for name in [*links, *(name for name in files if not _STAGED.match(name))]:
            path = Path(folder, name)
            relative = path.relative_to(directory).as_posix()
            if reason := why_not_opened(root, path):
                refused[relative] = reason
            elif name not in links:  # a linked directory inside is read in its own place
                names.append(relative)
    return sorted(names), refused


def why_not_opened(root: Path, path: Path) -> str | None:
    """Why `path`, in a checkpoint whose resolved directory is `root`, is not opened; None where it may be."""
    if reason := why_leads_out(root, path):
        return f"{reason}: not opened" if "out of" in reason else reason
    try:
        mode = path.stat().st_mode
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return "is no file but a device, pipe or socket: not opened"
    return None
