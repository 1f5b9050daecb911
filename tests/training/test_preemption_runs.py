"""`hf-recipes sft` as users start it, stopped by real signals: code 75, one verified checkpoint, nobody left, and the
resumed run's losses are those of the unbroken one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.events import read_events

STEPS = 100
RECIPE = """
model_name_or_path: MODEL
overfit_check: off
datasets: [{path: rows.jsonl}]
learning_rate: 1e-2
per_device_train_batch_size: 2
max_steps: STEPS
eval_strategy: "no"
logging_steps: 1
save_steps: 1000
disable_tqdm: true
watch: {live_report: false}
"""
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def on_one_core():
    """Threads cost a model as small as this more than they save, on a busy machine very much."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def workplace(tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = RECIPE.replace("MODEL", str(tiny_model_dir)).replace("STEPS", str(STEPS))
    (tmp_path / "recipe.yaml").write_text(recipe)
    rows = [{"instruction": f"Say number {i}", "output": f"The number is {i * 7 % 10}."} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def start(*keys):
    """The command, and what it prints on stderr."""
    command = [sys.executable, "-m", "hf_recipes.cli.main", "sft", "--config", "recipe.yaml", *keys]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def logged(run):
    return {event["step"]: event["loss"] for event in read_events(run) if event["kind"] == "log" and "loss" in event}


def wait_for_a_step(process, run):
    while not (run.is_dir() and logged(run)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def send(process, number, to_all):
    """To the command alone, as Kubernetes and a terminal do, or to each of its processes, as Slurm does."""
    parent = psutil.Process(process.pid)
    for each in [*(parent.children(recursive=True) if to_all else []), parent]:
        each.send_signal(number)


def stop(run, number, *keys, to_all=False):
    """Start, send the signal after a step, and see that it ends as promised; the step."""
    process = start("--output_dir", str(run), *keys)
    wait_for_a_step(process, run)
    tree = psutil.Process(process.pid).children(recursive=True)
    send(process, number, to_all)
    _, told = process.communicate(timeout=120)
    status = json.loads((run / "status.json").read_text())
    step = status["last_step"]
    assert process.returncode == status["code"] == 75, told
    sentence = f"stopped at step {step} by {number.name}, saved in checkpoint-{step} (verified); go on with"
    assert sentence in status["sentence"]
    assert status["sentence"] in told.splitlines()[-1]
    assert [path.name for path in run.glob("checkpoint-*")] == [f"checkpoint-{step}"]
    assert verify_checkpoint(run / f"checkpoint-{step}").ok
    assert not (run / "adapter").exists()
    assert not [process for process in tree if process.is_running() and process.status() != "zombie"]
    assert [event for event in read_events(run) if event.get("verdict") == "gone"] == []
    return step


def test_sigterm_to_the_command_saves_once_and_ends_with_75(workplace):
    assert stop(workplace / "run", signal.SIGTERM) < STEPS


@pytest.mark.trials
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("to_all", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_every_signal_in_every_way_saves_once(number, to_all, ranks, workplace):
    keys = ["--num_processes", str(ranks), "--dataloader_num_workers", "1"]
    assert stop(workplace / "run", number, *keys, to_all=to_all) < STEPS


@pytest.mark.trials
@pytest.mark.parametrize("ranks", [1, 2])
def test_c4_a_stopped_and_resumed_run_has_the_losses_of_the_unbroken_one(ranks, workplace):
    keys = ["--num_processes", str(ranks)]
    stop(workplace / "run", signal.SIGTERM, *keys, to_all=True)
    for run, more in (("run", ["--resume_from_checkpoint", "last"]), ("whole", [])):
        process = start("--output_dir", run, *keys, *more)
        _, told = process.communicate(timeout=300)
        assert process.returncode == 0, told
    assert logged(workplace / "run") == logged(workplace / "whole")
    assert len(logged(workplace / "whole")) == STEPS


@pytest.mark.trials
@pytest.mark.parametrize("seconds", [0.3, 1, 2, 3, 4, 6, 8])
def test_before_the_first_step_a_signal_ends_the_command_too(seconds, workplace):
    process = start("--output_dir", "run", "--max_steps", "100000")
    time.sleep(seconds)
    tree = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    _, told = process.communicate(timeout=120)
    # Before Python has installed any handler, a signal does what it does to any process.
    assert process.returncode == 75 or (process.returncode == -signal.SIGTERM and not tree), told
    assert not [each for each in tree if each.is_running() and each.status() != "zombie"]
    assert not list((workplace / "run").glob("checkpoint-*")) or "verified" in told
