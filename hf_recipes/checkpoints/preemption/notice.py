"""Asks by a command whether this machine is about to be taken away (spot and preemptible machines)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

from hf_recipes.core.log import logger

_LONGEST_SECONDS = 10.0
_LOOK_SECONDS = 0.05
_CANNOT_RUN = (126, 127)


class NoticePoll:
    """Runs a shell command over and over in a thread; its exit code 0 is the notice that the machine goes.

    Args:
        command: like ``curl -sf http://…/spot/instance-action``. Anything but exit code 0 means no. One that cannot be
            run, or does not come back within ten seconds, is told once.
        poll_seconds: pause between two runs.
        tell: is given what is wrong with the command.
    """

    def __init__(self, command: str, poll_seconds: float = 5.0, tell: Callable[[str], None] = logger.warning) -> None:
        self.command, self.poll_seconds, self._tell = command, poll_seconds, tell
        self.noticed = False
        self._told: set[str] = set()
        self._stop = threading.Event()

    def start(self) -> None:
        """Begin to ask."""
        self._stop = threading.Event()
        threading.Thread(target=self._run, args=(self._stop,), name="preemption-notice", daemon=True).start()

    def stop(self) -> None:
        """Ask no more; a command that runs is ended with all that it has started."""
        self._stop.set()

    def _run(self, stop: threading.Event) -> None:
        while not self.noticed and not stop.is_set():
            self.noticed = self._ask(stop) == 0
            stop.wait(self.poll_seconds)

    def _ask(self, stop: threading.Event) -> int | None:
        try:
            code = _exit_code(self.command, stop)
        except OSError as error:
            self._tell_once("start", f"cannot be started ({error.strerror or error})")
            return None
        if code is None and not stop.is_set():
            self._tell_once("hang", f"did not end within {_LONGEST_SECONDS:g} s")
        elif code in _CANNOT_RUN:
            self._tell_once("run", f"cannot be run (exit code {code})")
        return code

    def _tell_once(self, kind: str, what: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self._tell(
                f"preemption_command {what}: until it can, no notice of this machine's end is seen ({self.command})."
            )


def _exit_code(command: str, stop: threading.Event) -> int | None:
    """In a session of its own, so that Ctrl-C does not reach it and all of it can be ended, as it is in any case: a
    pipe may have parts that live on. None: it took too long."""
    devnull = subprocess.DEVNULL
    with subprocess.Popen(
        command, shell=True, stdin=devnull, stdout=devnull, stderr=devnull, start_new_session=True
    ) as process:
        end = time.monotonic() + _LONGEST_SECONDS
        try:
            while process.poll() is None and time.monotonic() < end and not stop.wait(_LOOK_SECONDS):
                pass
            return process.poll()
        finally:
            _end_session(process)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
