"""Verification beside the training: nothing waits for it, and nothing of it is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from checkpoint_helpers import make_trainer
from transformers import TrainerCallback

from hf_recipes.checkpoints import keeper as keeper_module
from hf_recipes.checkpoints.background import BackgroundJob, finish_jobs
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import read_verified
from hf_recipes.checkpoints.saved import settle
from hf_recipes.core.events import read_events
from hf_recipes.core.step_vote import StepVote

HERE = Path(__file__).resolve().parent


class OpenAt(TrainerCallback):
    """Lets the verification go on when step N begins; remembers what was marked until then."""

    def __init__(self, gate, step):
        self.gate, self.step = gate, step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.marked_before = list(Path(args.output_dir).glob("*/manifest.json"))
            self.gate.set()


@pytest.fixture
def gate(monkeypatch):
    """Verification does not begin before this is set."""
    opened = threading.Event()

    def settle_later(saved):
        assert opened.wait(60)
        return settle(saved)

    monkeypatch.setattr(keeper_module, "settle", settle_later)
    return opened


def test_training_goes_on_while_a_checkpoint_is_verified(gate, tmp_path):
    opener, keeper = OpenAt(gate, step=5), CheckpointKeeper(trial_save=False)
    make_trainer(tmp_path, [opener, keeper], save_steps=4, max_steps=6).train()
    assert opener.marked_before == []
    assert keeper.failed is None
    assert all(read_verified(tmp_path / f"checkpoint-{step}")["ok"] for step in (4, 6))


def test_a_second_save_waits_for_the_first_and_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper_module, "_NOTABLE_SECONDS", 0.0)
    make_trainer(tmp_path, [CheckpointKeeper()], max_steps=3).train()
    (note,) = [event for event in read_events(tmp_path) if event["kind"] == "note" and "waited" in event["message"]]
    assert note["waited_seconds"] > 0
    assert "for the verification of checkpoint-1" in note["message"]


def test_a_crash_in_the_thread_is_told_and_stops_the_run(tmp_path, monkeypatch, caplog):
    def crash(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr("hf_recipes.checkpoints.saved.judge", crash)
    keeper = CheckpointKeeper()
    trainer = make_trainer(tmp_path, [keeper], max_steps=5)
    trainer.train()
    assert keeper.failed == "verifying checkpoint-1 crashed with RuntimeError: a bug"
    assert trainer.state.global_step == 2
    assert "Traceback" in caplog.text
    assert read_verified(tmp_path / "checkpoint-1") is None


def test_a_bad_one_is_heard_before_the_next_save_though_others_have_voted_at_this_step(tmp_path):
    class Voter(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            self.vote = StepVote.open()

        def on_step_end(self, args, state, control, **kwargs):
            self.vote.count(state.global_step)

    keeper = CheckpointKeeper()
    make_trainer(tmp_path, [Voter(), Truncate(), keeper], max_steps=4).train()
    assert "optimizer.pt" in keeper.failed
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]


class Truncate(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        os.truncate(f"{args.output_dir}/checkpoint-{state.global_step}/optimizer.pt", 100)


def test_a_bad_last_checkpoint_is_known_before_train_returns(tmp_path):
    keeper = CheckpointKeeper()
    make_trainer(tmp_path, [Truncate(), keeper], max_steps=1).train()
    assert "optimizer.pt" in keeper.failed


class Raises(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 3:
            raise RuntimeError("out of luck")


def test_an_error_that_ends_training_loses_no_mark(gate, tmp_path):
    """What the process does at its exit, done here by hand."""
    trainer = make_trainer(tmp_path, [CheckpointKeeper(trial_save=False), Raises()], save_steps=2, max_steps=4)
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer.train()
    assert read_verified(tmp_path / "checkpoint-2") is None
    gate.set()
    finish_jobs()
    assert read_verified(tmp_path / "checkpoint-2")["ok"]
    (event,) = [event for event in read_events(tmp_path) if event["kind"] == "verify"]
    assert event["checkpoint"] == "checkpoint-2"


def test_a_forked_child_leaves_the_jobs_to_its_parent():
    gate, told = threading.Event(), []
    job = BackgroundJob("waiting", lambda: gate.wait(60), told.append)
    child = os.fork()
    if child == 0:
        finish_jobs()
        os._exit(1 if told else 0)
    assert os.waitpid(child, 0)[1] == 0
    gate.set()
    assert job.wait()


def test_a_job_is_told_once():
    told = []
    job = BackgroundJob("counting", lambda: 3, told.append)
    assert job.wait() == 3
    finish_jobs()
    assert told == []
    BackgroundJob("counting", lambda: 4, told.append)
    finish_jobs()
    finish_jobs()
    assert told == [4]


@pytest.mark.trials
@pytest.mark.slow
def test_the_process_exits_with_the_marks_written_unless_interrupted_once_more(tmp_path):
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "background_exit.py"), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    slow, stuck = json.loads(done.stdout.splitlines()[-1])
    for ended in (slow, stuck):
        assert ended["status"] != 0
        assert "out of luck" in ended["errors"]
        assert "Still verifying checkpoint-2; interrupt to leave without." in ended["errors"]
    assert read_verified(tmp_path / "slow" / "checkpoint-2")["ok"]
    assert read_verified(tmp_path / "stuck" / "checkpoint-2") is None
    assert not (tmp_path / "stuck" / "checkpoint-2" / "manifest.json").exists()


def test_a_wait_that_a_signal_handler_breaks_off_can_be_taken_up_again():
    """`Thread.join` would take the thread for ended from then on."""
    gate, told = threading.Event(), []

    def work():
        assert gate.wait(60)
        return "done"

    def leave(number, frame):
        raise KeyboardInterrupt

    job = BackgroundJob("working", work, told.append)
    before = signal.signal(signal.SIGALRM, leave)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            job.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not job.done
    gate.set()
    finish_jobs()
    assert told == ["done"]
