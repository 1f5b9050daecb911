"""Heartbeats judged on a clock of the test's own."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.beat import EVALUATING, SAVING, TRAINING, WAITING, Beat
from hf_recipes.callbacks.heartbeats import HeartbeatJudge, Mailbox, open_default_store

TICK = 0.2


class Run:
    """Ranks in lockstep: each step waits for data, goes through one forward and one backward pass, and meets."""

    def __init__(self, world=2, late_seconds=60.0, timeout_seconds=1800.0):
        self.judge = HeartbeatJudge(late_seconds, timeout_seconds)
        self.beats = {
            rank: Beat(rank=rank, host="here", pid=100 + rank, step=1, long=True, place="starting")
            for rank in range(world)
        }
        self.now, self.found, self.dead = 1000.0, [], []

    def put(self, rank, **changes):
        self.beats[rank] = replace(self.beats[rank], **changes)

    def look(self, leaving="", own_error=None):
        new = self.judge.judge(dict(self.beats), self.dead, self.now, leaving, own_error)
        self.found += new
        return new

    def wait(self, seconds, tick=TICK):
        end = self.now + seconds
        while self.now < end:
            self.now += tick
            self.look()

    def step(self, seconds=1.0, data=None, forward=None):
        """All ranks take one step; `data` and `forward` are seconds of each rank that it does not wait for others."""
        for phase, events, share in ((WAITING, 0, 0.2), (TRAINING, 0, 0.4), (TRAINING, 1, 0.4)):
            for rank in self.beats:
                self.put(rank, phase=phase, events=events, long=self.beats[rank].steps == 0, place="somewhere")
                self.look()
            self.wait(seconds * share, tick=max(TICK, seconds / 10))
        for rank, beat in self.beats.items():
            self.put(
                rank,
                step=beat.step + 1,
                phase=WAITING,
                events=0,
                steps=beat.steps + 1,
                data_seconds=beat.data_seconds + (data[rank] if data else 0.1),
                forward_seconds=beat.forward_seconds + (forward[rank] if forward else 0.3),
            )

    @property
    def kinds(self):
        return [(each.kind, each.ranks) for each in self.found]


def started(**arguments):
    run = Run(**arguments)
    for _ in range(5):
        run.step()
    return run


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10_000), st.integers(2, 6))
def test_healthy_ranks_of_uneven_steps_never_alarm(seed, world):
    """Steps of 0.3 to 30 s, one of ten of them ten times as long, ranks that take turns at being slower."""
    generator = random.Random(seed)
    run, usual = Run(world), generator.choice([0.3, 3.0])
    for _ in range(40):
        seconds = usual * generator.uniform(0.5, 2) * (10 if generator.random() < 0.1 else 1)
        busy = [seconds * generator.uniform(0.05, 0.12) for _ in range(world)]
        run.step(seconds, data=busy, forward=busy)
    assert run.found == []


@pytest.mark.parametrize("late_seconds", [3.0, 60.0])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_that_does_not_move_while_others_do_is_late_once(rank, late_seconds):
    run = started(world=3, late_seconds=late_seconds)
    for other in {0, 1, 2} - {rank}:
        run.put(other, phase=TRAINING, events=1, place="backward of micro-batch 1")
    run.put(rank, place="between steps", fetching=True, where="read (disk.py:7)")
    limit = max(late_seconds, 10 * 1.0)  # ten median steps
    run.wait(limit - 1)
    assert run.found == []
    run.wait(3)
    (found,) = run.found
    assert (found.kind, found.ranks, found.step) == ("late", (rank,), 6)
    assert "at step 6, waiting for data, in read (disk.py:7), while rank" in found.sentence
    assert "backward of micro-batch 1; the collective time-out is 1800 s" in found.sentence
    run.wait(limit * 3)
    assert len(run.found) == 1
    run.put(rank, phase=TRAINING, events=0, fetching=False, where=None)
    run.wait(1)
    assert run.kinds[1:] == [("moving", (rank,))]


def test_who_waited_for_a_late_rank_is_not_late_when_that_one_passes_it():
    run = started(late_seconds=3)
    run.put(0, phase=TRAINING, events=1)
    run.wait(15)
    run.put(1, phase=TRAINING, events=2)
    run.wait(1)
    assert run.kinds == [("late", (1,)), ("moving", (1,))]


def test_at_the_same_place_the_one_that_fetches_data_is_behind():
    run = started(late_seconds=3)
    run.put(1, fetching=True)  # rank 0 has its data, and counts tokens with the others before the step begins
    run.wait(15)
    assert run.kinds == [("late", (1,))]


@pytest.mark.parametrize("phase", [EVALUATING, SAVING, WAITING])
def test_long_phases_have_ten_times_the_limit(phase):
    run = started(late_seconds=20)
    run.put(1, phase=phase, long=True, place="saving")
    run.put(0, phase=TRAINING, events=1)
    run.wait(190)
    assert run.found == []
    run.wait(15)
    assert run.kinds == [("late", (1,))]


def test_the_first_step_may_take_long_but_late_comes_before_the_time_out():
    run = Run(late_seconds=60, timeout_seconds=600)
    run.put(0, phase=TRAINING, events=1)
    run.put(1, phase=TRAINING, events=0)
    run.wait(299)
    assert run.found == []
    run.wait(2)
    assert run.kinds == [("late", (1,))]  # at half the time-out, not after 600 s


def test_ranks_that_all_stand_at_the_same_place_are_told_without_blaming_one():
    run = started(late_seconds=20)
    for rank in (0, 1):
        run.put(rank, phase=TRAINING, events=2, place="comparing gradients")
    run.wait(199)
    assert run.found == []
    run.wait(3)
    assert run.kinds == [("late", ())]
    run.step()
    assert len(run.found) == 1


def test_a_dead_rank_is_gone_at_the_next_look_and_what_follows_is_not_told():
    run = started(world=3)
    run.dead = [1]
    (found,) = run.look()
    assert (found.kind, found.ranks) == ("gone", (1,))
    assert "without a word" in found.sentence
    assert "process 101 on here" in found.sentence
    run.put(2, word="failed", error="RuntimeError: Connection closed by peer")
    run.dead = [1, 2]
    run.wait(600, tick=10)
    assert len(run.found) == 1


def test_the_silent_one_is_named_not_those_that_fail_of_it():
    run = started(world=3)
    run.put(0, word="failed", error="RuntimeError: Connection closed by peer")
    run.dead = [1]
    (found,) = run.look("exit", "RuntimeError: Connection reset by peer")
    assert found.ranks == (1,)


def test_a_rank_that_failed_is_told_with_its_error_unless_this_one_fails_of_the_same():
    for own_error, told in (("KeyError: 'x'", []), ("RuntimeError: Connection closed", [("gone", (1,))])):
        run = started()
        run.put(1, word="failed", error="KeyError: 'x'")
        run.look()
        assert run.found == []  # this rank may fail of it too, in a moment
        run.look("exit", own_error)
        assert run.kinds == told
    run = started()
    run.put(1, word="failed", error="KeyError: 'x'")
    run.wait(2)
    (found,) = run.found
    assert "Rank 1 left training with an error (KeyError: 'x')" in found.sentence


def test_the_first_to_fail_is_named():
    run = started(world=3)
    run.put(1, word="failed", error="RuntimeError: Connection closed by peer", time=20.0)
    run.put(2, word="failed", error="OSError: no space left", time=10.0)
    run.wait(2)
    assert run.kinds == [("gone", (2,))]


def test_a_run_that_is_told_to_terminate_has_no_missing_ranks():
    run = started()
    run.put(1, word="terminated")
    run.dead = [1]
    run.look()
    assert run.look("terminated") == []
    run.wait(1)
    assert run.found == []
    run.wait(2)  # this rank was not told
    assert run.kinds == [("gone", (1,))]
    assert "told to terminate" in run.found[0].sentence


def test_a_healthy_end_is_silent_whoever_comes_first():
    for first in (0, 1):
        run = started()
        run.put(first, word="ending")
        run.look()
        run.put(first, word="ended")
        run.dead = [1] if first == 1 else []
        run.put(1 - first, phase=SAVING, long=True)
        run.wait(30)
        run.put(1 - first, word="ended")
        run.wait(30)
        assert run.found == []


@pytest.mark.parametrize("word", ["ending", "ended"])
def test_a_rank_that_ends_while_another_goes_on_is_told_at_once(word):
    run = started()
    run.put(1, word=word)
    run.put(0, phase=TRAINING)
    (found,) = run.look()
    assert (found.kind, found.ranks, found.step) == ("ended_early", (1,), 6)
    assert "ended its training after step 5" in found.sentence
    run.wait(100)
    assert len(run.found) == 1


@pytest.mark.parametrize("part", ["data", "forward"])
def test_a_rank_persistently_slower_is_named_once_within_50_steps(part):
    run = started(world=4)
    for _ in range(50):
        run.step(0.7, **{part: [0.1, 0.1, 0.45, 0.1]})
    (found,) = run.found
    assert (found.kind, found.ranks) == ("slow", (2,))
    assert ("fetching data" if part == "data" else "the forward pass") in found.sentence
    for _ in range(100):
        run.step(0.7, **{part: [0.1, 0.1, 0.45, 0.1]})
    assert len(run.found) == 1


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10_000))
def test_one_long_pause_is_no_slow_rank(seed):
    pauses = (random.Random(seed).randrange(20), 35)
    run = started()
    for step in range(60):
        pause = 8.0 if step in pauses else 0.0
        run.step(0.5 + pause, data=[0.1, 0.1 + pause])
    assert run.found == []


def test_beats_survive_json_and_a_store(tmp_path):
    import torch.distributed as dist

    beat = Beat(rank=1, host="here", pid=5, where="é (x.py:1)", error=None)
    assert Beat.from_json(beat.to_json()) == beat
    json.loads(beat.to_json())
    for store in (dist.HashStore(), dist.FileStore(str(tmp_path / "store"), 1)):
        mailbox = Mailbox(store, 2)
        mailbox.send(beat)
        assert mailbox.read() == {}  # rank 0 has not sent one: nobody waits for it
        mailbox.send(replace(beat, rank=0))
        mailbox.send(replace(beat, step=9))
        assert mailbox.read() == {0: replace(beat, rank=0), 1: replace(beat, step=9)}
        assert mailbox.texts("end") == {}


def test_the_default_store_is_reached_by_a_connection_of_its_own(tmp_path):
    """Holds torch's private name for it."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, 1, True)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        ours = open_default_store("hf_recipes/ranks/0")
        Mailbox(ours, 1).leave("end", 0, "x")
        assert Mailbox(open_default_store("hf_recipes/ranks/0"), 1).texts("end") == {0: "x"}
        assert Mailbox(open_default_store("hf_recipes/ranks/1"), 1).texts("end") == {}
    finally:
        dist.destroy_process_group()
