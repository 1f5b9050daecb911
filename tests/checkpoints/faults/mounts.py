"""Small disks and read-only directories, where this process may mount; where it may not, the trial says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PAGE_BYTES = 4096


class Refused(Exception):
    """The system does not let us mount."""


@contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[Callable[[], None]]:
    """A disk of that size at `directory`; yields a function that makes it large."""
    directory.mkdir(parents=True, exist_ok=True)
    size = max(size_bytes, 2 * PAGE_BYTES)
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory))
    try:
        yield lambda: _mount("-o", "remount,size=64m", str(directory))
    finally:
        _unmount(directory)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Nobody can write into `directory`, not even root."""
    _mount("--bind", str(directory), str(directory))
    try:
        _mount("-o", "remount,bind,ro", str(directory))
        yield
    finally:
        _unmount(directory)


def _mount(*arguments: str) -> None:
    if not sys.platform.startswith("linux"):
        raise Refused("mounting is done on Linux only")
    try:
        subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", "") or str(error)
        raise Refused(f"mounting is refused here: {reason.strip()}") from None


def _unmount(directory: Path) -> None:
    subprocess.run(["umount", "--lazy", str(directory)], check=True, capture_output=True)
