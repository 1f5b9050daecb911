"""SIGTERM, met on the main thread or, where that one hangs, on a watching thread; and not by forked children."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

from hf_recipes.core.stop_signals import is_awaited, settled

_MAIN_THREAD_SECONDS = 2.0


class SigtermWatch:
    """Does something at SIGTERM before whoever handled it so far does; and wakes the thread.

    Python runs a handler on the main thread alone, between two lines of Python. One that hangs in a collective never
    gets there, so the signal also wakes the thread, and a process that SIGTERM would have ended still ends.

    Where somebody awaits the signal, to save and to end (see `is_awaited`), this rank does not go yet and nothing is
    done; unless a rank is lost, without which no save can be made.

    Args:
        action: what to do, and at the second call nothing.
        sees_a_loss: looks for lost ranks; called on the thread.
    """

    def __init__(self, action: Callable[[], Any], sees_a_loss: Callable[[], bool] = lambda: False) -> None:
        self._action, self._sees_a_loss = action, sees_a_loss
        self._active = False
        self._previous: Any = None
        self._handed_on = threading.Event()
        self._awake, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def set(self) -> None:
        """Only Python's main thread may; elsewhere, and where native code handles the signal, nothing is done."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is not None:
            self._active = True
            self._previous = signal.signal(signal.SIGTERM, self._handle)
            other = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
            if other != -1:  # an event loop's: it has the older right
                signal.set_wakeup_fd(other)
        _watching.add(self)

    def unset(self) -> None:
        """Give the signal back, or, where somebody has taken it over since, only pass it on from now on."""
        self._active = False
        _watching.discard(self)
        if threading.current_thread() is threading.main_thread() and self._previous is not None:
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, settled(self._previous, signal.SIGTERM))
            other = signal.set_wakeup_fd(-1)
            if other not in (-1, self._wake.fileno()):
                signal.set_wakeup_fd(other)
        self._wake.send(b"\0")

    def stands_on(self, number: int) -> Any:
        """The handler below; None while this one is in use (see `settled`)."""
        return None if self._active else self._previous

    def unset_in_child(self) -> None:
        """The child of a fork shares the socket: it must not wake its parent."""
        self._active = False
        if threading.current_thread() is threading.main_thread() and self._previous is not None:
            signal.set_wakeup_fd(-1)
            if signal.getsignal(signal.SIGTERM) == self._handle:
                signal.signal(signal.SIGTERM, self._previous)

    def wait(self, seconds: float) -> Literal["", "sigterm", "stop"]:
        """Sleep, or be woken."""
        if not select.select([self._awake], [], [], seconds)[0]:
            return ""
        numbers = self._awake.recv(4096)
        if not self._active:
            return "stop"
        return "sigterm" if signal.SIGTERM in numbers else ""

    def see_it_through(self) -> None:
        """On the thread, after SIGTERM."""
        awaited = is_awaited()
        if awaited and not self._sees_a_loss():
            return
        self._action()
        ends = awaited or self._previous == signal.SIG_DFL
        if not self._handed_on.wait(_MAIN_THREAD_SECONDS) and ends:
            os._exit(128 + signal.SIGTERM)  # what the signal alone would have done, as a shell tells it

    def _handle(self, number: int, frame: FrameType | None) -> None:
        awaited = is_awaited()
        if self._active and not awaited:
            self._action()
        self._handed_on.set()
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL and not awaited:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


_watching: set[SigtermWatch] = set()


def _leave_children_alone() -> None:
    """A forked child (a data loader's worker) has no thread and no part in the heartbeats."""
    for sigterm in _watching:
        sigterm.unset_in_child()


os.register_at_fork(after_in_child=_leave_children_alone)
