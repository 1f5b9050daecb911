"""Every strategy that can be written is really launched on CPU ranks, by the line that is printed, and trains as one
rank does."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
from pathlib import Path

import pytest
import yaml
from strategy_helpers import GIB
from tiny_models import make_tiny_llama

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed
from hf_recipes.plan.strategy.names import AS_NAMED, Sizes, layout_of
from hf_recipes.plan.strategy.search import Considered
from hf_recipes.plan.strategy.step_cost import StepCost
from hf_recipes.plan.strategy.write import write_plan
from hf_recipes.training.launch import launch_command
from hf_recipes.training.machines import place_of

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("strategy_ranks.py")
GLOBAL_BATCH, STEPS = 16, 3


@pytest.fixture(scope="module")
def workplace(tmp_path_factory, four_bit_model_dir):
    """Data, and what every recipe here says."""
    folder = tmp_path_factory.mktemp("launched")
    rows = [{"instruction": f"Say number {i}", "output": f"The number is {i * 7 % 10}."} for i in range(64)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, {
        "model_name_or_path": str(four_bit_model_dir),
        "datasets": [{"path": str(folder / "data.jsonl")}],
        "eval_share": 0,
        "plan_check": False,
        "bf16": False,
        "lora_dropout": 0.0,
        "learning_rate": 1e-3,
        "max_steps": STEPS,
        "overfit_check": "off",
        "logging_steps": 1,
        "save_steps": STEPS,
        "disable_tqdm": True,
    }


@pytest.fixture(scope="module")
def alone(workplace):
    """Losses of one rank, this process, by method: the same global batch by accumulation."""
    from hf_recipes.recipe.resolve import load_recipe
    from hf_recipes.training.run import train

    known = {}

    def losses(method, **more):
        if (method, *more) not in known:
            name = "-".join(("alone", method, *more))
            plan, run = written(workplace, name, Layout(), method, **more)
            assert plan.launch_lines == (f"hf-recipes sft --config {plan.files[0]}",)
            train(load_recipe(str(plan.files[0]), ["--use_cpu", "true"]))
            known[method, *more] = losses_of(run)
        return known[method, *more]

    return losses


def written(workplace, name, layout, method, checkpointing="off", **more):
    """Write a plan; the plan and the run's directory."""
    folder, values = workplace
    run = folder / name / "run"
    settings = TrainingSettings(
        micro_batch=2, accumulation=GLOBAL_BATCH // layout.data_parallel // 2, checkpointing=checkpointing
    )
    memory = MemoryEstimate({"backward": {"weights": float(GIB)}})
    taken = Considered(layout, settings, memory, StepCost(1.0), True)
    plan = write_plan(folder / name, taken, {**values, **more, "method": method, "output_dir": str(run)})
    return plan, run


def launched(workplace, strategy, ranks, nodes, method="full", checkpointing="off", sizes=AS_NAMED, **more):
    """Write the plan, run each node's line, and return the losses by step."""
    name = "-".join((strategy, f"{ranks}x{nodes}", method, checkpointing, *more))
    plan, run = written(workplace, name, layout_of(strategy, ranks, nodes, sizes), method, checkpointing, **more)
    port = free_port()
    processes = [start(line, port, as_on_devices=strategy == "tp") for line in plan.launch_lines]
    outputs = [process.communicate(timeout=900)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * nodes, outputs[0][-6000:]
    return losses_of(run)


def start(line, port, *, as_on_devices=False):
    """Start a printed line on this machine: its own interpreter, a free port, and CPU ranks that pass for devices (what
    the launcher is not told to shard, only where it is asked for)."""
    words = shlex.split(line.replace("FIRST_NODE", "127.0.0.1").replace("29500", str(port)))
    assert words[:2] == ["hf-recipes", "sft"]
    flags = {flag.removeprefix("--"): value for flag, value in zip(words[2::2], words[3::2], strict=True)}
    config_file = flags["config_file"]
    machine = place_of(flags, config_file)
    ranks = yaml.safe_load(Path(config_file).read_text())["num_processes"] // machine.count
    # What it starts, once it has checked recipe and data.
    words = launch_command("hf_recipes.sft", ["--config", flags["config"]], ranks, config_file, machine)
    module = words.index("hf_recipes.sft")
    assert words[module - 1] == "-m"
    words[module - 1 : module + 1] = [str(SCRIPT)]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "AS_ON_DEVICES": str(as_on_devices).lower(),
        "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS))),
    }
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


def losses_of(run):
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    assert json.loads((run / "status.json").read_text())["code"] == 0
    return {event["step"]: event["loss"] for event in events if event["kind"] == "log" and "loss" in event}


def check(found, expected, tolerance=1e-4):
    assert sorted(found) == sorted(expected) == list(range(1, STEPS + 1))
    assert found == pytest.approx(expected, abs=tolerance)
    assert len(set(found.values())) == STEPS  # it learns: a frozen model would pass too


@pytest.mark.slow
@pytest.mark.trials
def test_ddp_is_launched(workplace, alone):
    check(launched(workplace, "ddp", 2, 1), alone("full"))


@pytest.mark.slow
@pytest.mark.trials
def test_fsdp_is_launched(workplace, alone):
    check(launched(workplace, "fsdp", 2, 1), alone("full"))


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("zero1", 2),
        ("zero2", 2),
        ("zero3", 2),
        ("zero2_offload", 2),
        ("zero3_offload", 2),
        ("zero3_offload_all", 2),
        ("fsdp_offload", 2),
        ("zero2_offload", 1),
        ("zero3_offload_all", 1),
    ],
)
def test_each_strategy_is_launched(strategy, ranks, method, workplace, alone):
    if uses_deepspeed(layout_of(strategy, ranks)):
        pytest.importorskip("deepspeed")
    check(launched(workplace, strategy, ranks, 1, method), alone(method))


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 2), ("zero2", 2), ("fsdp", 2), ("zero3", 2), ("hsdp", 4)])
def test_two_nodes_are_launched_by_a_line_each(strategy, ranks, workplace, alone):
    if uses_deepspeed(layout_of(strategy, ranks, 2)):
        pytest.importorskip("deepspeed")
    check(launched(workplace, strategy, ranks, 2), alone("full"))


@pytest.mark.slow
@pytest.mark.trials
def test_matrices_cut_over_ranks_train_the_same(workplace, alone):
    check(launched(workplace, "tp", 2, 1), alone("full"))


@pytest.mark.slow
@pytest.mark.trials
def test_matrices_cut_over_ranks_beside_fsdp_train_the_same(workplace, alone, tokenizer, tmp_path):
    make_tiny_llama(len(tokenizer), tied=False).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    untied = {"model_name_or_path": str(tmp_path)}
    check(launched(workplace, "tp", 4, 1, sizes=Sizes(tensor=2), **untied), alone("full", **untied))


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize(
    ("strategy", "checkpointing"),
    [("ddp", "every_2"), ("fsdp", "all"), ("fsdp", "selective"), ("zero2", "all"), ("zero3", "all")],
)
def test_checkpointing_changes_nothing(strategy, checkpointing, workplace, alone):
    if uses_deepspeed(layout_of(strategy, 2)):
        pytest.importorskip("deepspeed")
    check(launched(workplace, strategy, 2, 1, "lora", checkpointing), alone("lora"))


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3", "fsdp"])
@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_in_bf16_as_on_devices(strategy, method, workplace, alone):
    if uses_deepspeed(layout_of(strategy, 2)):
        pytest.importorskip("deepspeed")
    found = launched(workplace, strategy, 2, 1, method, bf16=True)
    check(found, alone("lora" if method == "qlora" else method), tolerance=0.1 if method == "qlora" else 0.03)
