"""A trial as a process of its own: started, looked at while it runs, asked to stop, never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hf_recipes.core.log import logger
from hf_recipes.core.stop_signals import STOP_SIGNALS, StopListener

_LOOK_SECONDS = 0.5
_LAST_SECONDS = 20.0  # after a second Ctrl-C
_PARENT_DEATH_SIGNAL = 1  # prctl(2)


def run_child(arguments: Sequence[str], log: Path, listener: StopListener, look: Callable[[], bool]) -> int:
    """Run `hf-recipes ARGUMENTS` to its end and return its exit code.

    What stops this process is passed on: the run saves and ends. On Linux it does so too when this process is killed.

    Args:
        arguments: of the command line, the verb first.
        log: its output is added to this file.
        listener: hears the stop signals of this process.
        look: asked twice a second; True asks the run, once, to save and end.

    Raises:
        KeyboardInterrupt: a second Ctrl-C.
    """
    command = [sys.executable, "-m", "hf_recipes.cli.main", *arguments]
    environment = {**os.environ, "TQDM_DISABLE": os.environ.get("TQDM_DISABLE", "1")}  # a log holds no moving bars
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as file:
        # A session of its own: a terminal's Ctrl-C comes through this process alone.
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_before_exec(),
        )
        try:
            return _follow(process, listener, look)
        except KeyboardInterrupt:
            _end(process)
            raise


def _follow(process: subprocess.Popen[bytes], listener: StopListener, look: Callable[[], bool]) -> int:
    passed_on: set[str] = set()
    asked = False
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_SECONDS)
        for name in _heard(listener) - passed_on:
            passed_on.add(name)
            logger.warning("%s: the running trial saves and ends; a second Ctrl-C ends it at once.", name)
            process.send_signal(getattr(signal, name))
        if not asked and not passed_on and process.poll() is None and look():
            asked = True
            process.terminate()
    return int(process.returncode)


def _heard(listener: StopListener) -> set[str]:
    """The first signal that came; and SIGTERM, which may come after a Ctrl-C, and is in more of a hurry."""
    return {*([listener.reason] if listener.reason else []), *(["SIGTERM"] if listener.terminated else [])}


def _end(process: subprocess.Popen[bytes]) -> None:
    """A second interrupt ends the run's ranks at once; what is left after a while is killed."""
    for wait in (0.6, _LAST_SECONDS):  # two presses within half a second count as one
        with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
            process.send_signal(signal.SIGINT)
            process.wait(wait)
    if process.poll() is None:
        process.kill()
        process.wait()


def _before_exec() -> Callable[[], None] | None:
    """In the child: stop signals do what they do anywhere, and on Linux SIGTERM comes when this process is gone, so
    that the trial saves and ends."""
    if os.name == "nt":
        return None
    parent = os.getpid()
    prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None

    def prepare() -> None:
        for name in STOP_SIGNALS:  # which our forks ignore, save SIGTERM
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        if prctl is None:
            return
        prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:  # it went before this was said
            os._exit(0)

    return prepare


def last_words(log: Path) -> str:
    """The last sentence that `hf-recipes` printed into a log; empty without one."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.removeprefix("hf-recipes: ") for line in reversed(lines) if line.startswith("hf-recipes: ")), "")


def free_of_writer(run: Path, patience_seconds: float = 40.0) -> bool:
    """Whether nobody writes into a run directory; a trial that was left behind is still saving, and is waited for."""
    from hf_recipes.checkpoints.lock import TakenDirectory, release_lock, take_lock

    until = time.monotonic() + patience_seconds
    while True:
        try:
            take_lock(run)
        except TakenDirectory:
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_SECONDS)
            continue
        release_lock(run)
        return True
