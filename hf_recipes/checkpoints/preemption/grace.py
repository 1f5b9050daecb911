"""Ends a process that was told to terminate and is not through in time, before it is killed without a word."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_TICK_SECONDS = 0.25


class GraceWatch:
    """A thread that looks at the clock once SIGTERM has come.

    Args:
        grace_seconds: how long the process may still live after SIGTERM.
        terminated: `time.monotonic()` of SIGTERM; None while there was none.
        last_words: writes down how this ends and returns the exit code.
    """

    def __init__(
        self, grace_seconds: float, terminated: Callable[[], float | None], last_words: Callable[[], int]
    ) -> None:
        self.grace_seconds, self._terminated, self._last_words = grace_seconds, terminated, last_words
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="preemption-grace", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """What had to be done is done."""
        self._stop.set()

    def _run(self) -> None:
        # A poll, not an event: nothing but an assignment is safe in a signal handler.
        while not self._stop.wait(_TICK_SECONDS):
            began = self._terminated()
            if began is not None and time.monotonic() - began > self.grace_seconds:
                code = 1
                try:
                    code = self._last_words()
                finally:
                    os._exit(code)
