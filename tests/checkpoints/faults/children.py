"""Work in forked children, of a parent that has imported everything and started no thread: a trial costs no imports,
and can be killed."""

from __future__ import annotations

import atexit
import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def start(work: Callable[[], Any], log: Path, environment: dict[str, str] | None = None) -> int:
    """Fork a child that does `work`, its output appended to `log`; its process id. It exits with 1 if it raises."""
    if child := _fork():
        return child
    status = 1
    try:
        os.environ.update(environment or {})
        stream = open(log, "a", buffering=1)  # noqa: SIM115 - for as long as the child lives
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        faulthandler.register(signal.SIGUSR2, stream)  # where it stood, if it must be killed for taking too long
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _leave(status)
    raise AssertionError("not reached")


def start_ranks(work: Callable[[], Any], log: Path, count: int) -> list[int]:
    """Fork `count` children that find each other as the ranks of one gloo group; their process ids in rank order."""
    if count == 1:
        return [start(work, log)]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "ACCELERATE_USE_CPU": "true",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return [start(work, log, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(count)]


def call(work: Callable[[], Any]) -> Any:
    """Do `work` in a child and return its value: the parent stays without threads whatever the work starts."""
    reader, writer = os.pipe()
    if not (child := _fork()):
        try:
            os.close(reader)
            try:
                answer = (True, work())
            except BaseException:
                answer = (False, traceback.format_exc())
            with open(writer, "wb") as stream:
                pickle.dump(answer, stream)
        finally:
            _leave(0)
    os.close(writer)
    with open(reader, "rb") as stream:
        sent = stream.read()
    os.waitpid(child, 0)
    worked, value = pickle.loads(sent) if sent else (False, "the child died")
    if not worked:
        raise RuntimeError(value)
    return value


def wait(children: list[int], seconds: float = 120) -> list[int]:
    """Wait for children; their exit codes in order, -9 for one that was killed, as all are when the time is up."""
    codes: dict[int, int] = {}
    end = time.monotonic() + seconds
    while len(codes) < len(children):
        for child in children:
            if child not in codes and (code := ended(child)) is not None:
                codes[child] = code
        if time.monotonic() > end:
            return [codes[child] if child in codes else _killed(child) for child in children]
        time.sleep(0.002)
    return [codes[child] for child in children]


def ended(child: int) -> int | None:
    """The exit code of a child that has ended, None while it runs. Ask until it is told; a child ends only once."""
    done, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if done else None


def _killed(child: int) -> int:
    os.kill(child, signal.SIGUSR2)
    time.sleep(0.2)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _fork() -> int:
    threads = threading.active_count()
    assert threads == 1, f"a fork of {threads} threads may hang"
    sys.stdout.flush()
    sys.stderr.flush()
    return os.fork()


def _leave(status: int) -> None:
    """End as a process ends that was not forked, with what it does at exit, but without unwinding the parent's calls.

    What the parent wants done at exit is done too, so it may leave nothing to that, such as a TemporaryDirectory.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
