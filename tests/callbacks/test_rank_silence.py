"""Ranks that no longer beat, on a clock of the test's own: what is said, when, and that a beating rank is never called
silent."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hf_recipes.callbacks import pulse as pulse_module
from hf_recipes.callbacks.beat import TRAINING, Beat
from hf_recipes.callbacks.heartbeats import HeartbeatJudge, Mailbox, obey_timeout
from hf_recipes.callbacks.pulse import Pulse, Telling
from hf_recipes.callbacks.rank_silence import LOST_SECONDS, places_sentence

LATE, TIMEOUT = 60.0, 600.0


class Waiting:
    """Four ranks on two machines, all in the same collective; those in `stopped` do not beat any more."""

    def __init__(self):
        self.judge = HeartbeatJudge(LATE, TIMEOUT)
        self.beats = {
            rank: Beat(
                rank, f"node{rank // 2} (pids)", 100 + rank, step=11, phase=TRAINING, events=1, place="backward",
                long=False, alive=0,
            )
            for rank in range(4)
        }  # fmt: skip
        self.now, self.stopped, self.found = 1000.0, set(), []

    def wait(self, seconds, **judged):
        for _ in range(int(seconds)):
            self.now += 1
            for rank, beat in self.beats.items():
                if rank not in self.stopped:
                    self.beats[rank] = replace(beat, alive=int(self.now))
            self.found += self.judge.judge(dict(self.beats), [], self.now, **judged)

    @property
    def kinds(self):
        return [(each.kind, each.ranks) for each in self.found]


def test_a_stopped_rank_is_named_though_all_stand_at_the_same_place():
    ranks = Waiting()
    ranks.wait(20)
    ranks.stopped = {3}
    ranks.wait(LATE)
    assert ranks.kinds == []
    ranks.wait(5)
    assert ranks.kinds == [("silent", (3,))]
    (verdict,) = ranks.found
    for part in ("Rank 3 on node1", "step 11, backward", "rank 0 (node0)", "process 103", "time-out of 600 s"):
        assert part in verdict.sentence
    assert verdict.values["silent_seconds"] == pytest.approx(LATE, abs=2)
    ranks.wait(100)  # not again; nor are all called late
    assert ranks.kinds == [("silent", (3,))]
    ranks.stopped = set()
    ranks.wait(2)
    assert ranks.kinds[1:] == [("moving", (3,))]


def test_who_waits_for_a_silent_rank_is_not_late():
    ranks = Waiting()
    ranks.wait(5)
    ranks.stopped = {3}
    ranks.wait(LATE - 30)
    ranks.beats[0] = replace(ranks.beats[0], events=2)  # rank 1 falls behind only now
    ranks.wait(200)
    assert ranks.kinds == [("silent", (3,))]


def test_a_machine_that_is_cut_off_is_named_once():
    ranks = Waiting()
    ranks.wait(5)
    ranks.stopped = {2}
    ranks.wait(1)
    ranks.stopped = {2, 3}
    ranks.wait(LATE + 5)
    assert ranks.kinds == [("silent", (2, 3))]
    assert "Ranks 2 and 3 on node1 have sent no heartbeat" in ranks.found[0].sentence


def test_ranks_that_beat_in_a_long_collective_are_late_not_silent():
    ranks = Waiting()
    ranks.wait(TIMEOUT / 2 + 5)
    assert ranks.kinds == [("late", ())]


def test_nobody_is_silent_to_a_judge_that_hears_nothing():
    ranks = Waiting()
    ranks.wait(5)
    ranks.stopped = {0, 1, 2, 3}
    ranks.wait(LATE + 30, deaf=True)
    assert [kind for kind, _ in ranks.kinds if kind == "silent"] == []


def test_a_collective_that_fails_makes_a_rank_that_no_longer_beats_gone():
    ranks = Waiting()
    ranks.wait(5)
    ranks.stopped = {3}
    ranks.wait(LOST_SECONDS, leaving="lost", own_error="Connection closed by peer")
    assert ranks.kinds == []  # it may yet beat
    ranks.wait(2, leaving="lost", own_error="Connection closed by peer")
    assert ranks.kinds == [("gone", (3,))]
    assert "beats no more: the process ended, or node1 is down" in ranks.found[0].sentence


def test_a_rank_told_to_be_silent_is_not_told_to_be_gone_when_the_collective_times_out():
    ranks = Waiting()
    ranks.wait(5)
    ranks.stopped = {3}
    ranks.wait(LATE + 5)
    ranks.wait(10, leaving="lost", own_error="timed out")
    assert ranks.kinds == [("silent", (3,))]


def test_a_rank_that_failed_in_a_collective_is_not_blamed_for_the_one_that_it_lost():
    ranks = Waiting()
    ranks.wait(5)
    ranks.stopped = {1, 3}
    ranks.beats[1] = replace(ranks.beats[1], word="failed", error="RuntimeError: [gloo/pair.cc] reset by peer")
    ranks.wait(LOST_SECONDS + 2, leaving="lost", own_error="RuntimeError: [gloo/pair.cc] closed by peer")
    assert ranks.kinds == [("gone", (3,))]


def test_after_a_time_out_it_is_told_where_every_rank_was():
    beats = Waiting().beats
    beats[3] = replace(beats[3], step=10, place="saving")
    told = places_sentence(beats, 40)
    assert "within 40 s" in told
    assert "ranks 0, 1 and 2 (node0, node1) at step 11, backward; rank 3 (node1) at step 10, saving" in told


class HangingStore:
    """A store whose machine is gone: no answer comes, ever."""

    def __init__(self, entered, hang):
        self._entered, self._hang = entered, hang

    def set(self, *_):
        self._entered.set()
        self._hang.wait()

    check = set


def test_a_rank_cut_off_from_the_store_says_so_and_does_not_wait(monkeypatch):
    monkeypatch.setattr(pulse_module, "_LOCK_SECONDS", 0.2)
    entered, hang, told = threading.Event(), threading.Event(), []
    pulse = Pulse(
        Mailbox(HangingStore(entered, hang), 2),
        HeartbeatJudge(LATE, TIMEOUT),
        1,
        7,
        Telling(told.append, lambda text: None),
    )
    thread = threading.Thread(target=pulse._run, daemon=True)
    thread.start()
    try:
        assert entered.wait(10)
        pulse.last_look("lost")
        pulse.last_look("exit")  # as the interpreter ends
        assert "has heard nothing from the machine of rank 0" in pulse.missing
        assert [verdict.kind for verdict in told] == ["silent"]
    finally:
        hang.set()
        pulse._sigterm.unset()
        thread.join(10)


def test_collectives_on_cpu_ranks_obey_the_time_out(monkeypatch):
    from torch.distributed import distributed_c10d

    seen = []
    monkeypatch.setattr(distributed_c10d, "_set_pg_timeout", seen.append)
    obey_timeout(40.0)
    assert [each.total_seconds() for each in seen] == [40.0]


def test_places_need_no_store():
    pulse = Pulse(
        Mailbox(SimpleNamespace(), 2), HeartbeatJudge(LATE, TIMEOUT), 0, 3, Telling(lambda _: None, lambda _: None)
    )
    assert "rank 0" in pulse.places()
