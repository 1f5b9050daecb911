"""The side of heartbeats that runs: a thread that sends this rank's beat and reads the others', and last looks.

The training thread only sets fields of a `Beat` here; it never touches the store, so nothing can hold it up. A rank's
end is met in three ways, since no one of them is sure: the thread looks at the processes of its machine five times a
second; a SIGTERM (a launcher sends it to the survivors of a death) and the interpreter's exit (a collective raised)
each take a last look before this process goes.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

from hf_recipes.callbacks.beat import WAITING, Beat
from hf_recipes.callbacks.heartbeats import HeartbeatJudge, Leaving, Mailbox, RankVerdict
from hf_recipes.callbacks.rank_silence import ALIVE_SECONDS, LOST_SECONDS, cut_off_sentence, places_sentence
from hf_recipes.callbacks.sigterm_watch import SigtermWatch

_TICK_SECONDS = 0.2
_STANDING_SECONDS = 1.0  # without progress, after which it is worth saying where the code stands
_LAST_LOOKS = 5
_LAST_LOOK_SECONDS = 0.1
_LOST_LOOKS = int((LOST_SECONDS + 2 * ALIVE_SECONDS) / _LAST_LOOK_SECONDS)
_LOCK_SECONDS = 5.0  # a thread that holds the lock for longer waits for a store that does not answer


@dataclass
class _Seen:
    """What the thread sees of its own rank. Only the training thread writes `Pulse.beat`: this is put on it later."""

    of: Beat
    fetching: bool = False
    where: str | None = None
    data_seconds: float = 0.0

    def on(self, beat: Beat) -> Beat:
        """Where the code stands is true of one beat only: a new one means that it has gone on."""
        stands = beat is self.of
        return replace(
            beat,
            fetching=self.fetching and stands,
            where=self.where if stands else None,
            data_seconds=self.data_seconds,
        )


@dataclass
class Telling:
    """Where findings go: verdicts of which this rank is the one to speak, and what broke the watching itself."""

    verdict: Callable[[RankVerdict], None]
    problem: Callable[[str], None]


class Pulse:
    """One rank's heart. Built on the training thread, which must be the one that calls `at`, `event` and `stop`.

    Args:
        mailbox: used from here on by the pulse alone.
        judge: what decides.
        rank: this rank.
        step: the step that comes first.
        telling: called from the thread, or in a last look.
    """

    def __init__(self, mailbox: Mailbox, judge: HeartbeatJudge, rank: int, step: int, telling: Telling) -> None:
        self.beat = Beat(rank=rank, host=_host(), pid=os.getpid(), time=time.time(), step=step)
        self._mailbox, self._judge, self._telling = mailbox, judge, telling
        self._trainer = threading.get_ident()
        self._parent = os.getppid()
        self._moved = time.monotonic()
        self._seen = _Seen(self.beat)
        self._last_tick = self._moved
        self._beats: Mapping[int, Beat] = {}
        self._sent: Beat | None = None
        self._processes: dict[int, psutil.Process | None] = {}
        self._broken: set[str] = set()
        self._deaf = self._is_cut_off = False
        self._began = self._asked = self._moved
        self.missing: str | None = None
        self._lock = threading.RLock()  # a signal may come while the training thread itself takes a last look
        self._last_looked = False
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)
        self._sigterm = SigtermWatch(self._at_sigterm, self._sees_a_loss)

    def start(self, meet: Callable[[], None]) -> None:
        """Begin to beat and to look. `meet` waits for all ranks: each knows the others before any of them can go."""
        self._guard("send", self._send)
        meet()
        self._guard("read", self._read)
        self._sigterm.set()
        atexit.register(self._at_exit)
        self._thread.start()

    def stop(self) -> None:
        """End of the training: say so, and stop looking."""
        self.beat = replace(self.beat, word="ended", place="the end of training")
        self._halt()
        with self._locked() as free:
            if free:
                self._guard("send", self._send)

    def at(self, place: str, step: int, phase: int = WAITING, long: bool = False) -> None:
        """This rank is now at another place."""
        self.beat = replace(
            self.beat, place=place, step=step, phase=phase, events=0, long=long, time=time.time(), word=""
        )
        self._moved = time.monotonic()

    def event(self, place: str | None = None) -> None:
        """Something was done at this place, or it has got another name."""
        beat = self.beat
        self.beat = replace(beat, events=beat.events + 1, place=place or beat.place, time=time.time(), word="")
        self._moved = time.monotonic()

    def ending(self) -> None:
        """This rank takes no more steps; it may still evaluate and save."""
        self.beat = replace(self.beat, word="ending", place="the end of training")
        self._moved = time.monotonic()

    def finished_step(self, forward_seconds: float) -> None:
        """One more step is done, whose forward passes took so long."""
        beat = self.beat
        self.beat = replace(beat, steps=beat.steps + 1, forward_seconds=beat.forward_seconds + forward_seconds)

    def last_look(self, leaving: Leaving = "") -> list[RankVerdict]:
        """Look once more: for half a second at most, since a process that has just died needs a moment to be seen dead;
        where a collective has failed (``lost``) until a rank of another machine can be known not to beat any more."""
        own_error = _own_error() if leaving in ("exit", "lost") else None
        found: list[RankVerdict] = []
        with self._locked() as free:
            if not free:
                return self._cut_off()
            if leaving == "terminated":
                self.beat = replace(self.beat, word="terminated")
            for _ in range(_LOST_LOOKS if leaving == "lost" else _LAST_LOOKS):
                self._guard("send", self._send)
                if found := self._look(leaving, own_error):
                    break
                if self.missing and leaving == "lost":
                    break  # told by another rank, or before
                time.sleep(_LAST_LOOK_SECONDS)
            if leaving in ("exit", "lost"):
                self.beat = replace(self.beat, word="failed", error=own_error, time=time.time())
                self._guard("send", self._send)
        return found

    def places(self) -> str:
        """Where all ranks were last seen."""
        beats = {**self._beats, self.beat.rank: self._own()}
        return places_sentence(beats, self._judge.timeout_seconds)

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """The lock, or False where the thread has it and waits for a store that does not answer."""
        free = self._lock.acquire(timeout=_LOCK_SECONDS)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    def _cut_off(self) -> list[RankVerdict]:
        """The store stands on the first machine; told by the first rank of this one, since no two can agree on it."""
        if self._is_cut_off:
            return []
        self._is_cut_off = True
        seconds = time.monotonic() - self._asked
        self.missing = self.missing or cut_off_sentence(self._beats.values(), self._own(), seconds)
        verdict = RankVerdict("silent", (0,), self.beat.step, self.missing, {"silent_seconds": seconds})
        here = [rank for rank, beat in self._beats.items() if beat.host == self.beat.host]
        if self.beat.rank != min(here, default=self.beat.rank):
            return []
        self._guard("tell", lambda: self._telling.verdict(verdict))
        return [verdict]

    def _at_exit(self) -> None:
        """The interpreter ends, and the training did not. The thread must not live into that."""
        if os.getpid() != self.beat.pid:
            return  # a forked child
        if self.beat.word != "terminated":
            self.last_look("exit")
        self._halt()

    def _at_sigterm(self) -> None:
        with self._locked() as free:
            if free and not self._last_looked:
                self._last_looked = True
                self.last_look("terminated")

    def _sees_a_loss(self) -> bool:
        self.last_look()
        return self.missing is not None

    def _halt(self) -> None:
        self._sigterm.unset()
        atexit.unregister(self._at_exit)
        if self._thread.is_alive():
            self._thread.join(timeout=2.0)

    def _run(self) -> None:
        while (woken := self._sigterm.wait(_TICK_SECONDS)) != "stop":
            if woken == "sigterm":
                self._sigterm.see_it_through()
                continue
            with self._lock:
                self._guard("place", self._see_own_place)
                self._guard("send", self._send)
                if self._watches():
                    self._look()

    def _look(self, leaving: Leaving = "", own_error: str | None = None) -> list[RankVerdict]:
        self._guard("read", self._read)
        verdicts: list[RankVerdict] = []
        self._guard("judge", lambda: verdicts.extend(self._judged(leaving, own_error)))
        for verdict in verdicts:
            self._guard("tell", lambda verdict=verdict: self._telling.verdict(verdict))  # type: ignore[misc]
        return verdicts

    def _judged(self, leaving: Leaving, own_error: str | None) -> list[RankVerdict]:
        if not self._beats or os.getppid() != self._parent:
            return []  # without its launcher every rank ends, and none of them is to blame
        beats = {**self._beats, self.beat.rank: self._own()}
        dead = [rank for rank, beat in beats.items() if self._is_dead(beat)]
        verdicts = self._judge.judge(beats, dead, time.monotonic(), leaving, own_error, self._deaf)
        self.missing = next((each.sentence for each in verdicts if each.kind in ("gone", "silent")), self.missing)
        if any(each.kind == "moving" for each in verdicts):
            self.missing = None
        return [verdict for verdict in verdicts if self._speaks_of(verdict)]

    def _own(self) -> Beat:
        """This rank's beat, with what the thread sees of it."""
        return replace(self._seen.on(self.beat), alive=int((time.monotonic() - self._began) / ALIVE_SECONDS))

    def _send(self) -> None:
        if (beat := self._own()) != self._sent:
            self._asked = time.monotonic()
            self._mailbox.send(beat)
            self._sent = beat

    def _read(self) -> None:
        self._deaf = True
        self._asked = time.monotonic()
        self._beats = self._mailbox.read() or self._beats
        self._deaf = False

    def _see_own_place(self) -> None:
        """Where the training thread stands, seen from outside; time in the data loader is summed up by samples."""
        now = time.monotonic()
        passed, self._last_tick = now - self._last_tick, now
        beat = self.beat
        standing = now - self._moved > _STANDING_SECONDS
        seen = _Seen(beat, data_seconds=self._seen.data_seconds)
        if standing or beat.phase == WAITING:
            frame = sys._current_frames().get(self._trainer)
            fetching = _is_fetching(frame)
            if fetching and beat.phase == WAITING:
                seen.data_seconds += passed
            if standing:
                seen.fetching, seen.where = fetching, _line(frame)
        self._seen = seen

    def _watches(self) -> bool:
        """The two lowest ranks of each machine look; the others only beat."""
        here = sorted(rank for rank, beat in self._beats.items() if beat.host == self.beat.host)
        return not here or self.beat.rank in here[:2]

    def _speaks_of(self, verdict: RankVerdict) -> bool:
        """Whether this rank is the one to tell: the lowest not concerned, of those who can see it."""
        if verdict.kind == "silent":
            hosts: dict[str, list[int]] = {}
            for rank in sorted(self._beats):
                hosts.setdefault(self._beats[rank].host, []).append(rank)
            watching = sorted(rank for here in hosts.values() for rank in here[:2])
        elif verdict.kind == "gone" and not any(self._beats[rank].error for rank in verdict.ranks):
            host = self._beats[verdict.ranks[0]].host
            watching = sorted(rank for rank, beat in self._beats.items() if beat.host == host)[:2]
        else:
            watching = [0, 1]
        return self.beat.rank == next((rank for rank in watching if rank not in verdict.ranks), None)

    def _is_dead(self, beat: Beat) -> bool:
        if beat.host != self.beat.host or beat.pid == self.beat.pid:
            return False
        if beat.rank not in self._processes:
            self._processes[beat.rank] = _process(beat.pid)
        process = self._processes[beat.rank]
        try:
            return process is None or not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False

    def _guard(self, what: str, action: Callable[[], Any]) -> None:
        """Watching must not break the run: what fails in it is told once."""
        try:
            action()
        except Exception as error:
            if what not in self._broken:
                self._broken.add(what)
                text = (
                    f"Heartbeats of the ranks: {what} fails ({type(error).__name__}: {error}); the run is not touched."
                )
                try:
                    self._telling.problem(text)
                except Exception:
                    return  # nobody to tell


def _host() -> str:
    """The machine, and on it the space in which process ids count: containers may share a host's name."""
    try:
        return f"{socket.gethostname()} ({Path('/proc/self/ns/pid').readlink()})"
    except OSError:
        return socket.gethostname()


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.NoSuchProcess:
        return None


def _own_error() -> str | None:
    """What is being handled, or what the interpreter was left by."""
    error = sys.exception() or getattr(sys, "last_value", None)
    return f"{type(error).__name__}: {error}".strip()[:300] if error is not None else None


def _is_fetching(frame: FrameType | None) -> bool:
    while frame is not None:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        if "torch/utils/data/" in path:
            return True
        if "torch/distributed/" in path:
            return False
        frame = frame.f_back
    return False


def _line(frame: FrameType | None) -> str | None:
    if frame is None:
        return None
    return f"{frame.f_code.co_name} ({Path(frame.f_code.co_filename).name}:{frame.f_lineno})"
