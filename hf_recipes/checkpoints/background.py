"""Work in a thread beside the training, which the process does not leave unfinished."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - so that it registers what it does at exit before us
import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from hf_recipes.core.log import logger

Value = TypeVar("Value")
_PATIENCE_SECONDS = 1.0


class BackgroundJob(Generic[Value]):
    """Runs `work` in a thread of its own.

    The process does not exit before it has ended, whatever ended the training: an error, an interrupt. A second
    interrupt leaves at once, and so does a signal that ends the process; `work` must be such that this does no harm.

    Args:
        what: what it does, for a sentence ("verifying checkpoint-5").
        work: it must not raise.
        tell: gets the value where nobody asked for it any more before the process left.
    """

    def __init__(self, what: str, work: Callable[[], Value], tell: Callable[[Value], None]) -> None:
        self.what = what
        self._work, self._tell = work, tell
        # Not `Thread.join`: a signal handler that raises in the middle of it makes the thread count as ended.
        self._done = threading.Event()
        _open_jobs.append(self)
        threading.Thread(target=self._run, name=what, daemon=True).start()

    def _run(self) -> None:
        self._value = self._work()
        self._done.set()

    @property
    def done(self) -> bool:
        """Whether `wait` would not wait."""
        return self._done.is_set()

    def wait(self) -> Value:
        """The value of `work`, once it has ended."""
        self._done.wait()
        with contextlib.suppress(ValueError):
            _open_jobs.remove(self)
        return self._value

    def finish(self) -> None:
        """Wait, and hand the value over to `tell`; says so where it takes more than a second."""
        self._done.wait(_PATIENCE_SECONDS)
        if not self.done:
            logger.warning("Still %s; interrupt to leave without.", self.what)
        self._tell(self.wait())


_open_jobs: list[BackgroundJob[Any]] = []


def finish_jobs() -> None:
    """Finish the jobs whose values nobody took, such as those of a training that an exception ended."""
    for job in list(_open_jobs):
        job.finish()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open_jobs.clear)  # their threads stay with the parent

# The pools of concurrent.futures, which the work uses, are closed before plain `atexit` functions run: what is
# registered here runs before that. The one use of this private name; without it only the marks of the last
# checkpoint are lost, and they are made again by whoever resumes from it.
getattr(threading, "_register_atexit", atexit.register)(finish_jobs)
