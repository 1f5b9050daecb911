"""A bar for what takes long: bytes done, bytes a second, time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any


class Progress:
    """Counts bytes from many threads; shown on a terminal, silent elsewhere."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar
        self._lock = Lock()

    @classmethod
    def silent(cls) -> Progress:
        """Counts for nobody."""
        return cls()

    def add(self, nbytes: int) -> None:
        """Tell of bytes that are done."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(nbytes)


@contextmanager
def progress(total_bytes: int, what: str) -> Iterator[Progress]:
    """A bar on stderr for `total_bytes`, where stderr is a terminal; gone when it is done."""
    if not sys.stderr.isatty():
        yield Progress.silent()
        return
    from tqdm import tqdm

    with tqdm(total=total_bytes, desc=what, unit="B", unit_scale=True, leave=False, dynamic_ncols=True) as bar:
        yield Progress(bar)
