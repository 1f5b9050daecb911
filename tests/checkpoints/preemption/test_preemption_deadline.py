"""When to stop for a deadline, and the command that is asked whether the machine goes."""

from __future__ import annotations

import random
import time

import psutil
import pytest

from hf_recipes.checkpoints.preemption.deadline import DeadlineWatch, seconds_of, slurm_end
from hf_recipes.checkpoints.preemption.notice import NoticePoll
from hf_recipes.core.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("3600", 3600),
        (90.5, 90.5),
        ("11h30m", 41400),
        ("90m", 5400),
        ("1.5h", 5400),
        ("2d 1h", 176400),
        ("45s", 45),
        ("1:30:00", 5400),
        ("90:00", 5400),
        ("2-12", 216000),
        ("2-12:30", 217800),
        ("2-12:00:00", 216000),
    ],
)
def test_a_time_limit_is_read_as_people_and_slurm_write_it(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "0", "-5", "5x", "1h2d", "nan", "inf", "::", "0h"])
def test_what_is_no_length_of_time_is_refused(text):
    with pytest.raises(UserError, match=r"time_limit: .* is no length of time: write"):
        seconds_of(text)


def test_the_end_of_a_slurm_job_counts_while_it_lies_ahead():
    assert slurm_end({"SLURM_JOB_END_TIME": "1000"}, now=900) == 1000
    assert slurm_end({"SLURM_JOB_END_TIME": "1000"}, now=1001) is None  # the job was extended
    assert slurm_end({"SLURM_JOB_END_TIME": "later"}, now=900) is None
    assert slurm_end({}, now=900) is None


def simulated(seed):
    """A run of steps, evaluations and saves of random length, once as long as they get, under a deadline that leaves
    room for those: the time at its stop, the watch, the longest save."""
    chance = random.Random(seed)
    longest = {"step": chance.uniform(0.1, 40), "evaluation": chance.uniform(0, 200), "save": chance.uniform(0.1, 100)}
    now = 1000.0
    watch = DeadlineWatch(now + 2 * sum(longest.values()) + chance.uniform(20, 5000))
    watch.mark(now)
    for number in range(1, 100_000):
        took = {what: length * (1 if number == 1 else chance.uniform(0.5, 1)) for what, length in longest.items()}
        now += took["step"]
        watch.step_ended(now)
        if number > 1 and watch.must_stop(now, number % 7 == 0):
            break
        if number == 1 or number % 7 == 0:
            now += took["evaluation"]
            watch.ended("evaluation", now)
        if number > 1 and watch.must_stop(now):
            break
        if number == 1 or number % 10 == 0:
            now += took["save"]
            if number > 1 and watch.must_stop(now):
                return now, watch, 0.0  # it is saved
            watch.ended("save", now)
    return now, watch, longest["save"]


def test_there_is_always_time_for_the_save_and_no_step_is_given_away():
    for seed in range(500):
        now, watch, save = simulated(seed)
        assert now + save <= watch.deadline, seed
        assert now + watch.needed_seconds(evaluates=True) > watch.deadline, seed


def test_the_parts_of_an_evaluation_add_up():
    watch = DeadlineWatch(1e9)
    watch.mark(0)
    watch.step_ended(2)
    for end in (10, 30):
        watch.ended("evaluation", end)
    watch.step_ended(31)
    watch.ended("evaluation", 36)
    assert watch.needed_seconds(evaluates=True) == 2 + 28 + 10
    watch.ended("save", 136)
    assert watch.needed_seconds() == 2 + 150


# --- the notice


def asked(command, poll_seconds=0.01, patience=30.0):
    told = []
    poll = NoticePoll(command, poll_seconds, told.append)
    poll.start()
    until = time.monotonic() + patience
    while not (poll.noticed or told) and time.monotonic() < until:
        time.sleep(0.01)
    poll.stop()
    return poll.noticed, told


def test_exit_code_0_is_the_notice():
    assert asked("true") == (True, [])


def test_any_other_exit_code_is_none_and_nothing_to_tell():
    assert asked("exit 22", patience=0.3) == (False, [])


def test_a_command_that_cannot_run_is_told_once():
    noticed, told = asked("no-such-command-here")
    assert (noticed, len(told)) == (False, 1)
    assert "cannot be run (exit code 127)" in told[0]


def test_nothing_that_the_command_has_started_outlives_the_run(tmp_path):
    file = tmp_path / "pid"
    poll = NoticePoll(f"sleep 60 & echo $! > {file}; wait", 0.01)
    poll.start()
    until = time.monotonic() + 30
    while not (file.exists() and file.read_text().strip()) and time.monotonic() < until:
        time.sleep(0.01)
    poll.stop()
    child = int(file.read_text())
    while _runs(child) and time.monotonic() < until:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_command_that_hangs_is_ended_and_told(monkeypatch):
    monkeypatch.setattr("hf_recipes.checkpoints.preemption.notice._LONGEST_SECONDS", 0.1)
    noticed, told = asked("sleep 60")
    assert not noticed
    assert "did not end within 0.1 s" in told[0]
