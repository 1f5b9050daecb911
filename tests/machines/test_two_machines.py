"""Runs on two machines made of namespaces, by the lines that a plan prints: that they train as one process does, and
what is said when a machine is not there, dies, is cut off, or has other data."""

from __future__ import annotations

import re
import signal

import pytest
from machine_runs import ELASTIC, plan_job, start_line, start_ranks, write_data

from hf_recipes.plan.layout import Layout

FOUR, TWO = Layout(4, 2, "ddp"), Layout(2, 2, "ddp")
pytestmark = [pytest.mark.slow, pytest.mark.trials]


@pytest.fixture
def alone(workplace, tiny_model_dir, one_thread):
    """Losses of one process with the same global batch."""
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.run import train

    def losses(**keys):
        job = plan_job(workplace / "alone", tiny_model_dir, Layout(), **keys)
        train(load_recipe(str(job.recipe), ["--use_cpu", "true"]))
        return job.losses()

    return losses


def start_all(two, job, folder):
    return [
        start_line(host, line, folder / f"{host.name}.log")
        for host, line in zip(two, job.plan.launch_lines, strict=True)
    ]


def ended(processes):
    return [process.wait(timeout=600) for process in processes]


def log(folder, name):
    return (folder / f"{name}.log").read_text()


def test_two_machines_train_as_one_process_does(two, workplace, tiny_model_dir, alone):
    job = plan_job(workplace / "two", tiny_model_dir, FOUR)
    assert ended(start_all(two, job, workplace)) == [0, 0], log(workplace, "node0")[-3000:]
    assert job.losses() == pytest.approx(alone(), abs=1e-4)
    assert len(set(job.losses().values())) == 3


def test_other_data_on_one_machine_are_said_before_the_first_step(two, workplace, tiny_model_dir):
    job = plan_job(workplace / "two", tiny_model_dir, FOUR)
    for host, rows in zip(two, (64, 60), strict=True):
        write_data(workplace, rows, f"{host.name}.jsonl")
    processes = [
        start_line(host, f"{line} --datasets.0.path {workplace}/{host.name}.jsonl", workplace / f"{host.name}.log")
        for host, line in zip(two, job.plan.launch_lines, strict=True)
    ]
    assert 0 not in ended(processes)
    assert "hf-recipes: The ranks read different data" in log(workplace, "node0")
    assert job.losses() == {}


def test_a_machine_that_does_not_come_is_named(two, workplace, tiny_model_dir):
    job = plan_job(workplace / "two", tiny_model_dir, FOUR, ddp_timeout=5)
    first, second = two
    assert ended(start_ranks(first, job, workplace / "node0.log", number=0)) == [2, 2]
    assert "hf-recipes: Machine 1 (ranks 2 and 3) did not come within 5 s" in log(workplace, "node0")
    assert ended(start_ranks(second, job, workplace / "node1.log", number=1)) == [2, 2]
    assert "hf-recipes: Nobody answers at node0:29500 for 5 s" in log(workplace, "node1")


def test_ranks_that_are_started_one_by_one_meet(two, workplace, tiny_model_dir, alone):
    job = plan_job(workplace / "two", tiny_model_dir, FOUR)
    processes = [
        process
        for number, host in enumerate(two)
        for process in start_ranks(host, job, workplace / f"{host.name}.log", number=number)
    ]
    assert ended(processes) == [0] * 4, log(workplace, "node0")[-3000:]
    assert job.losses() == pytest.approx(alone(), abs=1e-4)


def endless(workplace, model, **keys):
    keys = {"max_steps": 4000, "ddp_timeout": 60, "watch": {"late_seconds": 5}, **keys}
    return plan_job(workplace / "two", model, TWO, num_train_epochs=2000, **keys)


def test_a_frozen_rank_is_named_with_its_machine_and_step_and_the_run_ends(two, workplace, tiny_model_dir, until):
    job = endless(workplace, tiny_model_dir)
    processes = start_all(two, job, workplace)
    assert until(lambda: job.last_step() >= 5, *processes)
    (frozen,) = [each for each in two[1].processes() if each.environ().get("RANK") == "1"]
    frozen.send_signal(signal.SIGSTOP)
    assert until(lambda: job.alarms("silent"), *processes)
    (alarm,) = job.alarms("silent")
    assert alarm["ranks"] == [1]
    assert alarm["message"].startswith("Rank 1 on node1 has sent no heartbeat for")
    seen = re.search(r"last seen at step (\d+)", alarm["message"])
    assert seen and alarm["step"] - 2 <= int(seen[1]) <= alarm["step"]  # its last beats may not have left it
    assert processes[0].wait(timeout=600) == 1
    assert job.status()["code"] == 1
    assert "Rank 1 on node1" in job.status()["sentence"]


def test_a_machine_that_is_cut_off_is_named_and_both_sides_end(two, workplace, tiny_model_dir, until):
    job = endless(workplace, tiny_model_dir)
    processes = start_all(two, job, workplace)
    assert until(lambda: job.last_step() >= 5, *processes)
    two[1].unplug()
    assert until(lambda: job.alarms("silent"), *processes)
    assert job.alarms("silent")[0]["ranks"] == [1]
    assert 0 not in ended(processes)
    assert "Rank 1 on node1" in job.status()["sentence"]
    assert "has heard nothing from the machine of rank 0 (node0" in log(workplace, "node1")


@pytest.mark.parametrize("dies", ["one rank", "the machine"])
def test_after_a_death_the_run_goes_on_from_the_last_verified_checkpoint(
    dies, two, workplace, tiny_model_dir, alone, until
):
    keys = {"max_steps": 12, "num_train_epochs": 100, "save_steps": 3}
    job = plan_job(workplace / "two", tiny_model_dir, TWO, resume_from_checkpoint="auto", ddp_timeout=60, **keys)
    line = f"torchrun {ELASTIC} -m hf_recipes.sft --config {job.recipe}"

    def start(host, name):
        return start_line(host, line, workplace / f"{name}.log", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")

    processes = [start(host, host.name) for host in two]
    assert until(lambda: job.last_step() >= 7, *processes)
    victims = two[1].processes()
    if dies == "one rank":
        victims = [each for each in victims if each.environ().get("RANK") == "1"]
    for victim in victims:
        victim.kill()
    if dies == "the machine":
        processes[1].wait(timeout=600)
        processes[1] = start(two[1], "node1-again")
    assert ended(processes) == [0, 0], log(workplace, "node0")[-3000:]
    begins = job.events("begin")
    assert begins[-1]["resumed_from"] == 6
    assert job.losses() == pytest.approx(alone(**keys), abs=1e-4)
