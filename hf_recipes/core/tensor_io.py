"""Reading and writing parts of tensor files at their place: many threads, few buffers, no mapping.

A mapped file counts towards the memory of a process and costs a page fault for every 4 KiB; reads into a buffer that
stays in the cache do not.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Lock

_CHUNK_BYTES = 1 << 20
# What `copy_file_range` says where kernel or file system cannot do it.
_CANNOT = (errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM)


class OpenFiles:
    """Descriptors by path, opened once and shared by threads (reads and writes name their place). A context manager."""

    def __init__(self, flags: int = os.O_RDONLY) -> None:
        self._flags = flags
        self._descriptors: dict[Path, int] = {}
        self._lock = Lock()
        self._stack = ExitStack()

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._descriptors.clear()

    def __getitem__(self, file: Path) -> int:
        with self._lock:
            if file not in self._descriptors:
                descriptor = os.open(file, self._flags)
                self._stack.callback(os.close, descriptor)
                self._descriptors[file] = descriptor
            return self._descriptors[file]

    def __iter__(self) -> Iterator[int]:
        return iter(list(self._descriptors.values()))


def read_into(descriptor: int, start: int, view: memoryview) -> None:
    """Fill `view` (bytes) from `start` on; raises `EOFError` when the file ends before."""
    done = 0
    while done < len(view):
        count = os.preadv(descriptor, [view[done:]], start + done)
        if not count:
            raise EOFError(f"the file ends {len(view) - done} bytes too early")
        done += count


def write_from(descriptor: int, start: int, view: memoryview) -> None:
    """Write all of `view` (bytes) at `start`."""
    done = 0
    while done < len(view):
        done += os.pwrite(descriptor, view[done:], start + done)


def copy_range(source: int, source_start: int, target: int, target_start: int, count: int) -> None:
    """Copy `count` bytes from file to file, inside the kernel where it can; raises `EOFError` as `read_into`."""
    done = 0
    while done < count and hasattr(os, "copy_file_range"):
        try:
            copied = os.copy_file_range(source, target, count - done, source_start + done, target_start + done)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            break
        if not copied:
            break
        done += copied
    buffer = memoryview(bytearray(min(_CHUNK_BYTES, count - done)))
    while done < count:
        part = buffer[: min(_CHUNK_BYTES, count - done)]
        read_into(source, source_start + done, part)
        write_from(target, target_start + done, part)
        done += len(part)
