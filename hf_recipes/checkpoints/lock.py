"""One run at a time writes into a directory: a lock that the system itself gives back when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.log import logger
from hf_recipes.core.ranks import from_main, is_main

LOCK_NAME = ".writer.lock"
_HELD_BY_ANOTHER = (errno.EWOULDBLOCK, errno.EACCES, errno.EAGAIN)
_MAY_NOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)


class TakenDirectory(UserError):
    """Another process writes into the output directory: nothing there may be touched, not even status.json."""


@dataclass
class _Held:
    """A lock of this process, how many of its parts rely on it, and whether its file was there before."""

    descriptor: int
    was_left: bool
    users: int = 1


_held: dict[str, _Held] = {}


def _let_go_in_child() -> None:
    """A forked data worker that outlives its parent must not go on holding the parent's lock."""
    for held in _held.values():
        with contextlib.suppress(OSError):
            os.close(held.descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_in_child)


def take_lock(output_dir: str | Path) -> None:
    """Become the one that writes into `output_dir`, until `release_lock` or the end of the process. Call it on rank 0
    alone; it may be taken several times in one process, and is given back as often.

    Raises:
        TakenDirectory: another process writes there.
        OSError: the directory cannot be written to at all.
    """
    path = Path(output_dir).absolute() / LOCK_NAME
    if held := _held.get(str(path)):
        held.users += 1
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    was_left = path.exists()
    try:
        descriptor = _lock(path)
    except OSError as error:
        if error.errno in _MAY_NOT_WRITE:
            raise
        logger.info("%s is not guarded against a second run (%s).", path.parent, error.strerror or error)
        return
    if descriptor is not None:
        _held[str(path)] = _Held(descriptor, was_left)


def was_left_locked(output_dir: str | Path) -> bool:
    """Whether a run that wrote into `output_dir` was killed: its lock's file is there, or was when this process took
    it."""
    path = Path(output_dir).absolute() / LOCK_NAME
    held = _held.get(str(path))
    return held.was_left if held else path.exists()


@contextlib.contextmanager
def only_writer(output_dir: str | Path) -> Iterator[None]:
    """Hold the lock around a block; to be called on every rank, of which the first takes it for all.

    Raises:
        TakenDirectory: on all ranks: another process writes there.
    """
    from_main(lambda: take_lock(output_dir))
    try:
        yield
    finally:
        if is_main():
            release_lock(output_dir)


def release_lock(output_dir: str | Path) -> None:
    """Give the lock back, where this process holds it."""
    path = Path(output_dir).absolute() / LOCK_NAME
    held = _held.get(str(path))
    if held is None:
        return
    held.users -= 1
    if held.users == 0:
        del _held[str(path)]
        with contextlib.suppress(OSError):
            path.unlink()  # while it is held: nobody can have locked this file besides
        os.close(held.descriptor)


def _lock(path: Path) -> int | None:
    """An open descriptor that holds the lock; None where the system has no such locks.

    Raises `TakenDirectory` where another process holds it, `OSError` where the file system knows no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in _HELD_BY_ANOTHER:
                    raise OSError(errno.ENOLCK, error.strerror) from error
                raise TakenDirectory(_refusal(path)) from None
            if _is_still_there(path, descriptor):
                _sign(descriptor)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder removed it between our two calls


def _is_still_there(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Say who holds it. A full disk has no room for that; the lock holds all the same."""
    holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": time.strftime("%Y-%m-%d %H:%M:%S")}
    with contextlib.suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _refusal(path: Path) -> str:
    holder = _holder(path)
    who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}" if holder else "another process"
    return (
        f"output_dir: '{path.parent}' is being written by another run ({who}): wait for it, end it, or name another "
        "directory."
    )


def _holder(path: Path) -> dict[str, Any] | None:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return {key: holder[key] for key in ("pid", "host", "since")}
    except (OSError, ValueError, KeyError, TypeError):
        return None
