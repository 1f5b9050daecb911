"""Signals that ask a run to stop: remembered by a handler that does nothing else, so that the run stops where it can
be taken up again."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

STOP_SIGNALS = tuple(name for name in ("SIGTERM", "SIGUSR1", "SIGINT") if hasattr(signal, name))
_ONE_PRESS_SECONDS = 0.5  # a launcher passes on what the terminal or the scheduler has sent already


class StopListener:
    """Takes the stop signals over while it listens; handlers that were there before are called after it.

    Works on Python's main thread only. A process that was started with SIGTERM or SIGINT ignored (`nohup`, a job in the
    background) goes on ignoring it. A second Ctrl-C does what it would do without this.

    Args:
        names: the signals, of `STOP_SIGNALS`.
        at_once: called with the first signal's name, from the handler: it may raise. Without it the signal is only
            remembered, and whoever built this must ask.
        worker_seconds: how long a data loader's worker lives on after a SIGTERM that has reached it too.

    Attributes:
        reason: name of the first signal that came, None so far.
        terminated: `time.monotonic()` of the first SIGTERM, after which a scheduler waits for a while and then kills.
    """

    def __init__(
        self,
        names: tuple[str, ...] = STOP_SIGNALS,
        at_once: Callable[[str], None] | None = None,
        worker_seconds: float = 30.0,
    ) -> None:
        self.names, self.at_once, self.worker_seconds = names, at_once, worker_seconds
        self.reason: str | None = None
        self.terminated: float | None = None
        self._interrupted: float | None = None
        self._before: dict[int, Any] = {}
        self._pid = os.getpid()

    def listen(self) -> bool:
        """Install the handlers; False where that cannot be (another thread than the main one)."""
        if threading.current_thread() is not threading.main_thread():
            return False
        if self.at_once is None:
            for stale in [each for each in _listening if each.at_once is None]:
                stale.close()  # of a training that an exception has ended
        for name in self.names:
            number = getattr(signal, name)
            before = settled(signal.getsignal(number), number)
            ignored = before == signal.SIG_IGN and name != "SIGUSR1"  # our launcher lets ranks start with it ignored
            if before is None or ignored:
                continue
            self._before[number] = before
            if (early := _listener(before)) and early.reason and not self.reason:
                self.reason, self.terminated = early.reason, early.terminated
            signal.signal(number, self._hear)
        _listening.append(self)
        return True

    def close(self) -> None:
        """Give the signals back, save those that somebody has taken over since."""
        if self in _listening:
            _listening.remove(self)
        for number, before in self._before.items():
            if signal.getsignal(number) == self._hear:
                signal.signal(number, settled(before, number))

    def stands_on(self, number: int) -> Any:
        """The handler below; None while this one listens (see `settled`)."""
        return None if self in _listening else self._before[number]

    def _hear(self, number: int, frame: FrameType | None) -> None:
        before = self._before[number]
        if os.getpid() != self._pid:  # a fork that got the handler with the rest
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if self not in _listening:  # kept only because somebody stands above this one
            _pass_on(before, number, frame)
            return
        if number == signal.SIGINT and self._is_second_press():
            self.close()
            (before if callable(before) else signal.default_int_handler)(number, frame)
            return
        first = self.reason is None
        self._remember(number)
        if early := _listener(before):
            early._remember(number)
        elif callable(before) and before != signal.default_int_handler:
            before(number, frame)
        if first and self.at_once:
            self.at_once(signal.Signals(number).name)

    def _is_second_press(self) -> bool:
        now = time.monotonic()
        if self._interrupted is None:
            self._interrupted = now
        return now - self._interrupted > _ONE_PRESS_SECONDS

    def _remember(self, number: int) -> None:
        if self.reason is None:
            self.reason = signal.Signals(number).name
        if number == signal.SIGTERM and self.terminated is None:
            self.terminated = time.monotonic()


_listening: list[StopListener] = []


def is_awaited() -> bool:
    """Whether somebody here waits for a stop signal, to save and to end: it is then no sign that the process goes."""
    return any(each.at_once is None and signal.SIGTERM in each._before for each in _listening)


def settled(handler: Any, number: int) -> Any:
    """The handler that counts where one has been given up that could not be taken away, since others stood above it.

    Such handlers are methods of objects with a method ``stands_on``.
    """
    while callable(stands_on := getattr(getattr(handler, "__self__", None), "stands_on", None)):
        below = stands_on(number)
        if below is None:
            break
        handler = below
    return handler


def _listener(handler: Any) -> StopListener | None:
    owner = getattr(handler, "__self__", None)
    return owner if isinstance(owner, StopListener) else None


def _pass_on(before: Any, number: int, frame: FrameType | None) -> None:
    if callable(before):
        before(number, frame)
    elif before == signal.SIG_DFL and not is_awaited():
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _leave_children_alone() -> None:
    """In a forked child: Ctrl-C and SIGUSR1, which reach it too, are its parent's business, and SIGTERM, by which its
    parent ends it, does what it does anywhere."""
    for listener in _listening:
        for number in listener._before:
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.SIG_IGN)
        if listener.at_once is None:
            _keep_loader_worker(listener.worker_seconds)
    _listening.clear()


def _keep_loader_worker(seconds: float) -> None:
    """In a forked child: if it becomes a worker of torch's data loader, a scheduler's SIGTERM must not end it while its
    parent still works on the step to be saved. (The loader ends its workers by a word; by SIGTERM only hung ones.)"""
    torch_signals = sys.modules.get("torch.utils.data._utils.signal_handling")
    as_before = getattr(torch_signals, "_set_worker_signal_handlers", None)
    if as_before is None:
        return

    def end_later(_number: int, _frame: FrameType | None) -> None:
        timer = threading.Timer(seconds, os._exit, (0,))
        timer.daemon = True
        timer.start()

    def set_handlers(*args: Any) -> None:
        as_before(*args)
        signal.signal(signal.SIGTERM, end_later)

    torch_signals._set_worker_signal_handlers = set_handlers  # type: ignore[union-attr]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_children_alone)
