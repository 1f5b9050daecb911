"""Whether a disk has room, asked before anything is written to it; and the room that files take."""

from __future__ import annotations

import shutil
from pathlib import Path

from hf_recipes.core.errors import UserError

_SPARE_BYTES = 128 * 1024**2  # tokenizers, configs, what the file system itself takes


def check_free_space(output: Path, needed_bytes: int, what: str, cure: str, place: str | None = None) -> None:
    """Raise `UserError` when the disk of `output` has less than `needed_bytes` and a little more free.

    Args:
        output: A path that need not exist yet.
        needed_bytes: What will be written.
        what: The beginning of the sentence, up to the number (``The merged model needs``).
        cure: Its end, what to do.
        place: Of the disk, in words; by default the nearest directory there is.
    """
    there = next(parent for parent in (output.absolute(), *output.absolute().parents) if parent.exists())
    free = shutil.disk_usage(there).free
    if free < needed_bytes + _SPARE_BYTES:
        raise UserError(
            f"{what} {needed_bytes / 1e9:.2f} GB, but {place or there} has {free / 1e9:.2f} GB free: {cure}."
        )


def directory_bytes(directory: Path) -> int:
    """The sizes of all files below a directory, of a link that of the file it leads to; 0 where there is none."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
