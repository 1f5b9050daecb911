"""`hf-recipes sweep` as users start it: trials as processes, stopped, killed, pruned, and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from sweep_places import make_place

from hf_recipes.core.events import read_events

pytestmark = [pytest.mark.slow, pytest.mark.trials]
STEPS = 150


@pytest.fixture(autouse=True)
def on_one_core():
    """Threads cost a model as small as this more than they save."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def place(tiny_model_dir, tmp_path, monkeypatch):
    make_place(tiny_model_dir, tmp_path, max_steps=STEPS, eval_steps=0.05)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*arguments):
    command = [sys.executable, "-m", "hf_recipes.cli.main", "sweep", "--config", "recipe.yaml", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process):
    out, err = process.communicate(timeout=600)
    return process.returncode, out, err


def logged(run):
    return {event["step"]: event["loss"] for event in read_events(run) if event["kind"] == "log" and "loss" in event}


def wait_for_a_step(process, run):
    while not (run.is_dir() and logged(run)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def states(place):
    book = json.loads((place / "sweeps/recipe/sweep.json").read_text())
    return {trial["name"]: trial["figures"].get("state") for trial in book["trials"]}


def runs(place, name):
    return place / "sweeps/recipe/trials" / name


def attempts(run):
    return {event["attempt"] for event in read_events(run)}


def gone(tree):
    return [process for process in tree if process.is_running() and process.status() != "zombie"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_stops_the_trial_where_it_can_go_on(number, place):
    process = start("--lr", "1e-3,1e-2")
    wait_for_a_step(process, runs(place, "lr0.001"))
    tree = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 75, err
    assert "the same command goes on" in err.splitlines()[-1]
    assert not gone(tree)
    assert states(place) == {"lr0.001": "stopped", "lr0.01": "waiting"}
    stopped_at = max(logged(runs(place, "lr0.001")))
    assert stopped_at < STEPS

    code, out, err = finish(start("--lr", "1e-3,1e-2"))
    assert code == 0, err
    assert states(place) == {"lr0.001": "ok", "lr0.01": "ok"}
    assert attempts(runs(place, "lr0.001")) == {1, 2} and attempts(runs(place, "lr0.01")) == {1}
    assert sorted(logged(runs(place, "lr0.001"))) == list(range(1, STEPS + 1))
    assert "Best: lr 0.01" in out


@pytest.mark.parametrize("whole", [False, True])
def test_a_killed_sweep_goes_on(whole, place):
    """Alone, its trial saves and ends; with all its processes, what was not saved is trained again."""
    process = start("--lr", "1e-3,1e-2", "--save_steps", "50", "--verify_checkpoints", "structure")
    run = runs(place, "lr0.001")
    while not (run / "checkpoint-50/verified.json").is_file():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    tree = psutil.Process(process.pid).children(recursive=True)
    for each in [psutil.Process(process.pid), *(tree if whole else [])]:
        each.kill()
    process.communicate()
    psutil.wait_procs(tree, timeout=60)
    assert not gone(tree)
    if not whole:
        assert json.loads((run / "status.json").read_text())["code"] == 75

    keys = ["--lr", "1e-3,1e-2", "--save_steps", "50", "--verify_checkpoints", "structure"]
    code, _, err = finish(start(*keys))
    assert code == 0, err
    assert "going on" in err
    assert states(place) == {"lr0.001": "ok", "lr0.01": "ok"}
    second = [event for event in read_events(run) if event["kind"] == "begin" and event["attempt"] == 2]
    assert second and second[0]["resumed_from"]


def test_the_median_rule_stops_a_trial_that_learns_nothing(place):
    code, out, err = finish(start("--lr", "1e-2,2e-2,5e-3,1e-8", "--prune", "median", "--max_steps", "250"))
    assert code == 0, err
    assert states(place) == {"lr0.01": "ok", "lr0.02": "ok", "lr0.005": "ok", "lr1e-08": "pruned"}
    assert "is above the median of 3 finished trials" in out
    assert max(logged(runs(place, "lr1e-08"))) < 250
    status = json.loads((runs(place, "lr1e-08") / "status.json").read_text())
    assert status["code"] == 75

    code, _, err = finish(start("--lr", "1e-2,2e-2,5e-3,1e-8", "--prune", "median", "--max_steps", "250"))
    assert code == 0 and "0 to run" in err


def test_optuna_asks_for_points_and_goes_on_where_it_was_stopped(place):
    pytest.importorskip("optuna")
    arguments = ["--lr", "1e-4..1e-1", "--lora_r", "2,4", "--search", "optuna", "--trials", "3", "--max_steps", "20"]
    process = start(*arguments)
    while not list(place.glob("sweeps/recipe/trials/*/adapter/manifest.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    finish(process)
    code, out, err = finish(start(*arguments))
    assert code == 0, err
    assert list(states(place).values()) == ["ok"] * 3
    assert (place / "sweeps/recipe/optuna.log").is_file()
    assert "Best: " in out


def test_a_model_that_is_not_there_stops_the_sweep_at_its_second_trial(place):
    code, _, err = finish(start("--lr", "1e-3,1e-2,2e-2", "--model_name_or_path", "./gone"))
    assert code == 2
    assert "the first trials were refused: " in err and "gone" in err
    assert "[2/3]" in err and "[3/3]" not in err
