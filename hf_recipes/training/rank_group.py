"""A launcher and its ranks as one group of processes: what stops it, and how it ends.

A stop signal goes to the ranks alone: the launchers of accelerate and torch would end at once, or end their ranks half
a minute later. The scheduler may have sent it to all of them already.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from hf_recipes.core.log import logger
from hf_recipes.core.stop_signals import STOP_SIGNALS
from hf_recipes.training.environment import LAUNCHED_BY_US

MARGIN_SECONDS = 8.0  # for the ranks' last words, after their own time is over
_TICK_SECONDS = 0.5
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)  # Windows has none
_NEW_SECONDS = 5.0  # a rank younger than this may not yet listen
_LOOK_SECONDS = 10.0
# Torch's launcher waits 300 s for those of the other machines when its ranks have ended, and then, on a machine that is
# cut off, for a connection that nobody takes up.
WITHOUT_RANKS_SECONDS = 330.0


@dataclass(frozen=True)
class GroupEnd:
    """How a group ended.

    Attributes:
        code: the launcher's exit code.
        stopped_by: the first stop signal, None without one.
        killed: why what was left of the group was killed, None where it ended by itself.
    """

    code: int
    stopped_by: str | None = None
    killed: str | None = None


@dataclass
class _Orders:
    """What the signals that came so far ask for."""

    module: str
    mark: str
    grace_seconds: float
    first: str | None = None
    interrupts: int = 0
    kill_at: float = float("inf")
    killed: str | None = None
    again_at: float = float("inf")
    look_at: float = 0.0
    ranks_were_there: float = float("inf")
    pending: list[int] = field(default_factory=list)

    def ranks(self) -> list[psutil.Process]:
        """The ranks that are there now."""
        return find_ranks(self.module, self.mark)

    def obey(self, leader: int, number: int) -> None:
        """Act on a signal of this process."""
        name = signal.Signals(number).name
        self.first = self.first or name
        self.interrupts += number == signal.SIGINT
        if self.interrupts > 1:
            self._kill_in(0.0, "a second Ctrl-C")
            return
        ranks = self.ranks()
        if not ranks and psutil.pid_exists(leader):
            logger.warning("%s: no rank has started yet, ending the launcher.", name)
            send_to_group(leader, signal.SIGTERM)
            self._kill_in(MARGIN_SECONDS, "the launcher did not end")
            return
        if number == signal.SIGINT:
            logger.warning("Ctrl-C: the run saves after this step and ends; a second Ctrl-C ends it at once.")
        _send(ranks, number)
        if number == signal.SIGTERM:
            seconds = self.grace_seconds + MARGIN_SECONDS
            self._kill_in(seconds, f"the ranks did not end within {seconds:g} s")
        elif number == signal.SIGUSR1 and any(_age(rank) < _NEW_SECONDS for rank in ranks):
            self.again_at = time.monotonic() + _NEW_SECONDS

    def send_again(self) -> None:
        """SIGUSR1 is ignored in a rank until it listens."""
        if time.monotonic() >= self.again_at:
            self.again_at = float("inf")
            _send(self.ranks(), signal.SIGUSR1)

    def end_without_ranks(self) -> None:
        """A launcher whose ranks have ended long ago waits for something that will not come."""
        now = time.monotonic()
        if now < self.look_at:
            return
        self.look_at = now + _LOOK_SECONDS
        if self.ranks():
            self.ranks_were_there = now
        elif now - self.ranks_were_there > WITHOUT_RANKS_SECONDS:
            self._kill_in(0.0, "the launcher did not end after its ranks")

    def launcher_ended(self, code: int | None, wait: Callable[[], None]) -> None:
        """A scheduler may have ended it, and this process's own signal comes a moment later. Ranks that outlive it are
        waited for, but not for ever."""
        if code is not None and code < 0 and not self.pending and not self.first:
            wait()
        if self.pending and not self.ranks():
            self.first = self.first or signal.Signals(self.pending[0]).name
        if self.kill_at == float("inf"):
            self._kill_in(self.grace_seconds + MARGIN_SECONDS, "the ranks outlived their launcher")

    def _kill_in(self, seconds: float, why: str) -> None:
        at = time.monotonic() + seconds
        if at < self.kill_at:
            self.kill_at, self.killed = at, why


def run_group(command: Sequence[str], environment: dict[str, str], module: str, grace_seconds: float) -> GroupEnd:
    """Run a launcher and its ranks as a process group of their own to the end of the last of them.

    SIGTERM, SIGUSR1 and the first Ctrl-C are passed on to the ranks, which are known by `LAUNCHED_BY_US` in their
    environment. After SIGTERM they have `grace_seconds`, and a margin, to end by themselves; a second Ctrl-C ends them
    at once.

    Args:
        command: The launcher's command line.
        environment: Its environment, and the ranks'.
        module: The Python module that the ranks run (`python -m module`).
        grace_seconds: See above.
    """
    orders = _Orders(module, environment.get(LAUNCHED_BY_US, ""), grace_seconds)
    with _woken_by_signals(orders.pending) as wait:
        process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=_deaf_to_sigusr1())
        while process.poll() is None:
            _next(orders, process.pid, wait)
            orders.end_without_ranks()
            if time.monotonic() >= orders.kill_at:
                break
        orders.launcher_ended(process.poll(), wait)
        while time.monotonic() < orders.kill_at and orders.ranks():
            _next(orders, process.pid, wait)
        left = [*orders.ranks(), *([psutil.Process(process.pid)] if process.poll() is None else [])]
        if orders.first:
            send_to_group(process.pid, _KILL)
        _send(left, _KILL)
        return GroupEnd(process.wait(), orders.first, orders.killed if left else None)


def _next(orders: _Orders, leader: int, wait: Callable[[], None]) -> None:
    """Obey what has come, else wait for the next."""
    if not orders.pending:
        wait()
    while orders.pending:
        orders.obey(leader, orders.pending.pop(0))
    orders.send_again()


@contextmanager
def _woken_by_signals(pending: list[int]) -> Iterator[Callable[[], None]]:
    """Collect the stop signals of this process in `pending`; gives a function that waits for the next, or a tick."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    numbers = [getattr(signal, name) for name in STOP_SIGNALS]
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        if before[number] != signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: pending.append(number))
    wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        if select.select([reader], [], [], _TICK_SECONDS)[0]:
            reader.recv(4096)

    try:
        yield wait
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        reader.close()
        writer.close()


def find_ranks(module: str, mark: str) -> list[psutil.Process]:
    """The processes that run `module` and were started with `LAUNCHED_BY_US` set to `mark`, without those that they
    have forked. Torch's launcher puts each into a session of its own, and may be gone."""
    found = {
        process.pid: process
        for process in psutil.process_iter()
        if _runs(process, module) and _marked(process, mark) and _alive(process)
    }
    return [process for process in found.values() if _parent(process) not in found]


def _marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(LAUNCHED_BY_US) == mark
    except psutil.Error:
        return False


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.Error:
        return 0


def _runs(process: psutil.Process, module: str) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return "-m" in command and command[command.index("-m") + 1 :][:1] == [module]


def _send(ranks: Sequence[psutil.Process], number: int) -> None:
    for rank in ranks:
        with contextlib.suppress(psutil.Error):
            rank.send_signal(number)


def _age(process: psutil.Process) -> float:
    try:
        return time.time() - float(process.create_time())
    except psutil.Error:
        return 0.0


def send_to_group(leader: int, number: int) -> None:
    """Signal a whole process group; nothing where it is gone. On Windows: end the leader."""
    if not hasattr(os, "killpg"):
        with contextlib.suppress(psutil.Error):
            psutil.Process(leader).terminate()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def _deaf_to_sigusr1() -> Callable[[], object] | None:
    """It would end the launchers; what is ignored stays so in the processes they start, until those listen."""
    if not hasattr(signal, "SIGUSR1"):
        return None
    return lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)
