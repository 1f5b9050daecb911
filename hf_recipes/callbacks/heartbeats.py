"""The pure rules on heartbeats: which rank is late, gone, slow, or left early. And the store they travel through.

Every time here is seconds of one process's own clock: the one that judges. It looks at when *it* saw a beat change, so
clocks that differ between machines do no harm.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from hf_recipes.callbacks.beat import TRAINING, Beat
from hf_recipes.callbacks.rank_agreement import rank_names
from hf_recipes.callbacks.rank_pace import Pace
from hf_recipes.callbacks.rank_silence import ALIVE_SECONDS, LOST_SECONDS, Silence, silent_sentence

Kind = Literal["late", "moving", "gone", "ended_early", "slow", "silent"]
Leaving = Literal["", "exit", "terminated", "lost"]


_LONG = 10  # times the limit: evaluation, saving, the first step (compilation)
_STEPS_KEPT = 50
_COLLECTIVES = ("gloo", "nccl")  # in what they raise
_FAILED_GRACE = 1.0  # seconds in which this rank may fail of the same error
_TERMINATED_GRACE = 2.0  # seconds in which a launcher that ends the whole run reaches this rank too


@dataclass(frozen=True)
class RankVerdict:
    """One finding: `ranks` are those it is about (none: all alike), `values` go into the event."""

    kind: Kind
    ranks: tuple[int, ...]
    step: int
    sentence: str
    values: dict[str, Any]


class HeartbeatJudge:
    """Judges the beats of all ranks, again and again; one verdict for each unbroken series.

    Args:
        late_seconds: a rank that has not moved for so long since another passed it is late; at least ten times the
            run's median step, ten times as long where a beat says `long`, and in any case half the collectives'
            time-out.
        timeout_seconds: the collectives' time-out.
    """

    def __init__(self, late_seconds: float, timeout_seconds: float) -> None:
        self.late_seconds, self.timeout_seconds = late_seconds, timeout_seconds
        self._moved: dict[int, tuple[tuple[int, int, int], float]] = {}
        self._passed: dict[int, float] = {}
        self._words: dict[int, float] = {}
        self._dead: dict[int, float] = {}
        self._steps: deque[float] = deque(maxlen=_STEPS_KEPT)
        self._front_step: tuple[int, float] | None = None
        self._told: set[tuple[str, int | None]] = set()
        self._pace = Pace()
        self._silence = Silence()

    def judge(
        self,
        beats: Mapping[int, Beat],
        dead: Collection[int],
        now: float,
        leaving: Leaving = "",
        own_error: str | None = None,
        deaf: bool = False,
    ) -> list[RankVerdict]:
        """All that is new.

        Args:
            beats: the newest beat of every rank.
            dead: ranks whose process is seen not to exist any more.
            now: seconds, monotonic.
            leaving: how the judging process itself is about to go, if so; no time is then left to wait and see.
                ``lost``: a collective has failed, because of another rank.
            own_error: of what it then fails: who fails of the same is not worth a word.
            deaf: the beats are old ones, since none could be read.
        """
        self._see(beats, dead, now)
        if not deaf:
            self._silence.see(beats, now)
        verdicts = self._ended_early(beats) + self._gone(beats, now, leaving, own_error)
        if leaving or ("gone", None) in self._told:
            return verdicts  # without one rank all others stand still
        silent = [] if deaf else self._silence.silent(beats.values(), now, self._limit)
        verdicts += self._silent(silent, beats, now)
        if silent:
            return verdicts  # who waits for one that is silent is not late
        return verdicts + self._late(beats, now) + self._slow(beats, now)

    def _see(self, beats: Mapping[int, Beat], dead: Collection[int], now: float) -> None:
        for rank, beat in beats.items():
            if rank not in self._moved or self._moved[rank][0] != beat.progress:
                self._moved[rank] = (beat.progress, now)
                self._passed.pop(rank, None)
            if beat.word:
                self._words.setdefault(rank, now)
            else:
                self._words.pop(rank, None)  # told to terminate, but went on
        for rank in dead:
            self._dead.setdefault(rank, now)
        front = max((beat.step for beat in beats.values()), default=0)
        if self._front_step is None:
            self._front_step = (front, now)
        elif front > self._front_step[0]:
            steps = front - self._front_step[0]
            self._steps.append((now - self._front_step[1]) / steps)
            self._front_step = (front, now)

    def _gone(
        self, beats: Mapping[int, Beat], now: float, leaving: Leaving, own_error: str | None
    ) -> list[RankVerdict]:
        """Once a run: all ranks that go after the first one go because of it."""
        if ("gone", None) in self._told:
            return []
        gone = [beat for beat in beats.values() if self._is_gone(beat, now, leaving, own_error)]
        silent = [beat for beat in gone if beat.word in ("", "ending")]
        # Who fails with an error fails of the silent one, or of the first to fail.
        first = silent or sorted(gone, key=lambda beat: beat.time)[:1]
        if not first:
            return []
        self._told.add(("gone", None))
        beat = first[0]
        values = {"last_seen": beat.told, "error": beat.error, "host": beat.machine, "pid": beat.pid}
        step = max(each.step for each in beats.values())  # the last beat of a rank killed may be some steps old
        return [
            RankVerdict(
                "gone", tuple(each.rank for each in first), step, _gone_sentence(first, beat.rank in self._dead), values
            )
        ]

    def _is_gone(self, beat: Beat, now: float, leaving: Leaving, own_error: str | None) -> bool:
        if beat.word == "failed":
            if _is_consequence(beat.error):
                return False  # it lost another rank, as this one may have
            if leaving:
                return leaving == "terminated" or beat.error != own_error
            return now - self._words[beat.rank] >= _FAILED_GRACE
        if leaving == "lost" and not beat.word and self._silence.seconds(beat, now) > LOST_SECONDS:
            return ("silent", beat.rank) not in self._told  # of another machine: its processes are not seen from here
        if beat.rank not in self._dead or beat.word == "ended":
            return False
        if beat.word == "terminated":
            return leaving in ("exit", "lost") or (not leaving and now - self._dead[beat.rank] >= _TERMINATED_GRACE)
        return True

    def _ended_early(self, beats: Mapping[int, Beat]) -> list[RankVerdict]:
        verdicts = []
        for ended in beats.values():
            others = [each for each in beats.values() if not each.word and _trains_past(each, ended)]
            if ended.word not in ("ending", "ended") or not others or not self._first("ended_early", ended.rank):
                continue
            names = rank_names([each.rank for each in others])
            sentence = (
                f"Step {others[0].step}: rank {ended.rank} ended its training after step {ended.step - 1}, while "
                f"{names} {'goes' if len(others) == 1 else 'go'} on and will wait for it in vain until the collective "
                f"time-out of {self.timeout_seconds:g} s. What to do: give all ranks the same number of batches "
                "(streams: the same number of rows each, or max_steps below the shortest), and let no callback stop "
                "one rank alone."
            )
            values = {"last_step": ended.step - 1}
            verdicts.append(RankVerdict("ended_early", (ended.rank,), others[0].step, sentence, values))
        return verdicts

    def _silent(self, silent: list[Beat], beats: Mapping[int, Beat], now: float) -> list[RankVerdict]:
        """One verdict a machine; and one when a rank that was silent is heard again."""
        verdicts = []
        for rank, beat in beats.items():
            if ("silent", rank) in self._told and self._silence.seconds(beat, now) < ALIVE_SECONDS:
                self._told.discard(("silent", rank))
                text = f"Rank {rank} is heard again, at step {beat.step}."
                verdicts.append(RankVerdict("moving", (rank,), beat.step, text, {}))
        others = [beat for beat in beats.values() if beat not in silent and not beat.word]
        for host in dict.fromkeys(beat.host for beat in silent):
            quiet = self._silence.silent(beats.values(), now, lambda beat: self._limit(beat) / 2)
            here = [beat for beat in quiet if beat.host == host]  # its ranks fall silent at once, within a beat
            if not [beat for beat in here if self._first("silent", beat.rank)]:
                continue
            seconds = max(self._silence.seconds(beat, now) for beat in here)
            values = {"silent_seconds": seconds, "last_seen": here[0].told, "host": here[0].machine}
            sentence = silent_sentence(here, others, seconds, self.timeout_seconds)
            step = max(beat.step for beat in beats.values())
            verdicts.append(RankVerdict("silent", tuple(beat.rank for beat in here), step, sentence, values))
        return verdicts

    def _late(self, beats: Mapping[int, Beat], now: float) -> list[RankVerdict]:
        training = [beat for beat in beats.values() if not beat.word]
        if not training:
            return []
        front = max(training, key=lambda beat: beat.position)
        verdicts: list[RankVerdict] = []
        for beat in training:
            idle = now - self._moved[beat.rank][1]
            if beat.position < front.position:
                # Not since it moved: whoever waits for a late one is itself passed at the moment that one goes on.
                passed = self._passed.setdefault(beat.rank, now)
                if now - passed > self._limit(beat) and self._first("late", beat.rank):
                    verdicts.append(self._late_verdict(beat, front, idle))
            else:
                self._passed.pop(beat.rank, None)
            if idle <= self._limit(beat) and ("late", beat.rank) in self._told:
                self._told.discard(("late", beat.rank))
                text = f"Rank {beat.rank} moves again, at step {beat.step}."
                verdicts.append(RankVerdict("moving", (beat.rank,), beat.step, text, {}))
        return verdicts + self._all_late(training, now)

    def _late_verdict(self, beat: Beat, front: Beat, idle: float) -> RankVerdict:
        sentence = (
            f"Rank {beat.rank} is late: last seen moving {idle:.0f} s ago at {beat.told}, while rank {front.rank} is "
            f"at {front.told}; the collective time-out is {self.timeout_seconds:g} s. What to do: see what rank "
            f"{beat.rank} (process {beat.pid} on {beat.machine}) does there; data slow to read or to prepare (workers, "
            "network file system), a full disk, and work done on one rank alone are the usual causes."
        )
        values = {
            "idle_seconds": idle,
            "last_seen": beat.told,
            "others_at": front.told,
            "timeout_seconds": self.timeout_seconds,
        }
        return RankVerdict("late", (beat.rank,), beat.step, sentence, values)

    def _all_late(self, training: list[Beat], now: float) -> list[RankVerdict]:
        """No rank moves and none is behind: a device or the network stands, or a step takes very long."""
        idle = min(now - self._moved[beat.rank][1] for beat in training)
        alike = len({beat.position for beat in training}) == 1
        if idle <= self._limit(training[0], _LONG) or not alike:
            if idle <= self._limit(training[0]):
                self._told.discard(("late", None))
            return []
        if len(training) == 1 or not self._first("late", None):
            return []
        beat = training[0]
        sentence = (
            f"No rank has moved for {idle:.0f} s: all are at {beat.told}; the collective time-out is "
            f"{self.timeout_seconds:g} s. What to do: look at the devices (nvidia-smi) and the network between "
            "machines (nccl-tests); all ranks that wait at the same place wait for a collective or a device."
        )
        values = {"idle_seconds": idle, "last_seen": beat.told, "timeout_seconds": self.timeout_seconds}
        return [RankVerdict("late", (), beat.step, sentence, values)]

    def _slow(self, beats: Mapping[int, Beat], now: float) -> list[RankVerdict]:
        if any(beat.word for beat in beats.values()):
            return []
        slow = self._pace.see(beats, now)
        for told in [rank for kind, rank in self._told if kind == "slow" and rank is not None]:
            if self._pace.windows.get(told, 0) == 0:
                self._told.discard(("slow", told))
        if slow is None or not self._first("slow", slow.rank):
            return []
        step = beats[slow.rank].step
        cause = "fetching data" if slow.in_data else "the forward pass"
        advice = (
            "raise dataloader_num_workers, or look at the disk and the processes of its machine"
            if slow.in_data
            else "look for another process, fewer cores or a hot device there; rows of unlike length are shared out "
            "unevenly (train_sampling_strategy: group_by_length)"
        )
        sentence = (
            f"Step {step}: rank {slow.rank} is slower than the others, who wait for it at every step: "
            f"{slow.seconds:.2f} s a step before it meets them, mostly {cause}, against {slow.others:.2f} s. "
            f"What to do: {advice}."
        )
        values = {"seconds_a_step": slow.seconds, "others_seconds_a_step": slow.others, "cause": cause}
        return [RankVerdict("slow", (slow.rank,), step, sentence, values)]

    def _limit(self, beat: Beat, factor: int = 1) -> float:
        median = statistics.median(self._steps) if self._steps else 0.0
        limit = max(self.late_seconds, 10 * median) * (_LONG if beat.long else factor)
        return min(limit, self.timeout_seconds / 2)

    def _first(self, kind: str, rank: int | None) -> bool:
        first = (kind, rank) not in self._told
        self._told.add((kind, rank))
        return first


def _is_consequence(error: str | None) -> bool:
    """Whether a rank failed in a collective: of what became of another."""
    return error is not None and any(sign in error.lower() for sign in _COLLECTIVES)


def _trains_past(beat: Beat, ended: Beat) -> bool:
    """Whether `beat` is in the middle of a step that `ended` will never join."""
    return beat.phase == TRAINING and beat.step >= ended.step


def _gone_sentence(gone: list[Beat], seen_dead: bool) -> str:
    beat = gone[0]
    names = rank_names([each.rank for each in gone])
    subject = f"{names[0].upper()}{names[1:]}"
    if beat.word == "failed":
        error = f"an error ({beat.error})" if beat.error else "no error of its own"
        how = f"{subject} left training with {error}"
        advice = f"read the log of {names} for its traceback: what other ranks report after it is a consequence"
    elif beat.word == "terminated":
        how, advice = f"{subject} was told to terminate (SIGTERM)", f"see who ended the process on {beat.machine}"
    elif not seen_dead:
        how = f"{subject} {'beats' if len(gone) == 1 else 'beat'} no more: the process ended, or {beat.machine} is down"
        advice = f"see whether {beat.machine} answers, and what ended the process there (dmesg, a time limit)"
    else:
        how = f"{subject} {'is' if len(gone) == 1 else 'are'} gone: the process ended without a word"
        advice = (
            f"see what killed it on {beat.machine}: most often the system ran out of memory (dmesg says so), a time "
            "limit, or a crash in native code"
        )
    return (
        f"{how}, last seen at {beat.told} (process {beat.pid} on {beat.machine}). The other ranks cannot go on. "
        f"What to do: {advice}; then resume from the last good checkpoint (--resume_from_checkpoint last)."
    )


class Mailbox:
    """Beats and other small texts of all ranks in a key-value store. Used by one thread at a time.

    Args:
        store: any `torch.distributed` store.
        world_size: number of ranks.
    """

    def __init__(self, store: Any, world_size: int) -> None:
        self._store, self._world_size = store, world_size

    def send(self, beat: Beat) -> None:
        """Replace this rank's beat."""
        self._store.set(f"beat/{beat.rank}", beat.to_json())

    def read(self) -> dict[int, Beat]:
        """The newest beat of every rank; empty until all have sent one. Never waits."""
        return {rank: Beat.from_json(text) for rank, text in self._all("beat").items()}

    def leave(self, name: str, rank: int, text: str) -> None:
        """Leave a text for whoever asks."""
        self._store.set(f"{name}/{rank}", text)

    def texts(self, name: str) -> dict[int, str]:
        """What all ranks left under `name`; empty until all have. Never waits."""
        return {rank: text.decode() for rank, text in self._all(name).items()}

    def _all(self, name: str) -> dict[int, bytes]:
        keys = [f"{name}/{rank}" for rank in range(self._world_size)]
        if not self._store.check(keys):  # `get` of a key that is not there would wait
            return {}
        texts = self._store.multi_get(keys) if self._store.has_extended_api() else [self._store.get(k) for k in keys]
        return dict(enumerate(texts))


def open_default_store(prefix: str) -> Any:
    """The process group's own store, by a connection of our own: the group's own use may wait and hold it for minutes.

    With `obey_timeout` the one place with torch's private names. Raises `RuntimeError` or `ValueError` where there is
    none.
    """
    from torch.distributed import PrefixStore, distributed_c10d

    return PrefixStore(prefix, distributed_c10d._get_default_store().clone())  # type: ignore[attr-defined]


def obey_timeout(seconds: float) -> None:
    """Let collectives of the process group give up after so long: on CPU ranks the Trainer (transformers 5.24) does not
    pass its ``ddp_timeout`` on, and they would wait for half an hour."""
    from torch.distributed import distributed_c10d

    distributed_c10d._set_pg_timeout(timedelta(seconds=seconds))
