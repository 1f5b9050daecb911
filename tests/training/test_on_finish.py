"""`on_finish`: run once after success, by the launcher, and never otherwise."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from hf_recipes.cli.main import main
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training import launch as launch_module
from hf_recipes.training.on_finish import run_on_finish
from hf_recipes.training.rank_group import GroupEnd

RECIPE = """
model_name_or_path: MODEL
overfit_check: off
datasets: [{path: rows.jsonl}]
max_steps: 1
per_device_train_batch_size: 2
eval_strategy: "no"
save_strategy: "no"
trial_save: false
disable_tqdm: true
watch: {live_report: false}
on_finish: echo "$RUN_DIR" >> finished.txt
"""


@pytest.fixture(autouse=True)
def told(caplog):
    caplog.set_level(logging.INFO, logger="hf_recipes")
    return caplog


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    rows = [{"instruction": f"Say number {i}", "output": f"The number is {i}."} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def ranks_that_end_with(code, monkeypatch):
    """`hf-recipes sft` whose ranks write this exit code and nothing else."""

    def run_group(command, environment, module, grace_seconds):
        run = Path(command[command.index("--output_dir") + 1])
        run.mkdir(exist_ok=True)
        (run / "status.json").write_text(json.dumps({"code": code, "sentence": "…", "last_step": 1}))
        return GroupEnd(code)

    monkeypatch.setattr(launch_module, "run_group", run_group)


def test_the_command_runs_through_the_shell_with_the_run_directory(tmp_path, monkeypatch, told):
    monkeypatch.chdir(tmp_path)
    run_on_finish('printf "%s" "$RUN_DIR" > out && ls | wc -l > count', tmp_path / "runs" / "a", 0)
    assert (tmp_path / "out").read_text() == str(tmp_path / "runs" / "a")
    assert (tmp_path / "count").exists()
    assert "on_finish ended well (exit code 0)." in told.text


@pytest.mark.parametrize("code", [1, 2, 75, 130])
def test_nothing_runs_after_a_failure_or_a_preemption(code, tmp_path, told):
    run_on_finish(f"touch {tmp_path}/ran", tmp_path, code)
    assert list(tmp_path.iterdir()) == [] and told.text == ""


@pytest.mark.parametrize("command", [None, "", "  ", False])
def test_nothing_runs_where_nothing_is_asked_for(command, tmp_path, told):
    run_on_finish(command, tmp_path, 0)
    assert told.text == ""


def test_its_failure_is_told_and_no_more(tmp_path, told):
    run_on_finish("exit 3", tmp_path, 0)
    assert "on_finish ended with exit code 3; the run itself succeeded." in told.text
    assert told.records[-1].levelno == logging.ERROR


@pytest.mark.parametrize(
    ("given", "value"),
    [("sudo poweroff", "sudo poweroff"), ("off", False), ("", None)],
)
def test_the_key_in_a_recipe_and_on_the_command_line(given, value, workplace):
    text = (workplace / "recipe.yaml").read_text().rsplit("on_finish:", 1)[0]
    (workplace / "yaml.yaml").write_text(f"{text}on_finish: {given}\n")
    assert load_recipe("yaml.yaml").values.get("on_finish") in (value, value or None)
    if given:
        (workplace / "plain.yaml").write_text(text)
        assert load_recipe("plain.yaml", ["--on_finish", given]).values["on_finish"] == value


@pytest.mark.parametrize(("code", "runs"), [(0, 1), (1, 0), (75, 0)])
def test_sft_runs_it_once_after_success_alone(code, runs, workplace, monkeypatch):
    ranks_that_end_with(code, monkeypatch)
    argv = ["sft", "--config", "recipe.yaml", "--output_dir", "out", "--num_processes", "2", "--plan_check", "off"]
    assert main(argv) == code
    told = workplace / "finished.txt"
    assert (told.read_text().splitlines() if told.exists() else []) == [str(workplace / "out")] * runs


def test_a_failing_command_leaves_the_runs_exit_code(workplace, monkeypatch):
    ranks_that_end_with(0, monkeypatch)
    argv = ["sft", "--config", "recipe.yaml", "--output_dir", "out", "--plan_check", "off", "--on_finish", "exit 9"]
    assert main(argv) == 0


@pytest.mark.trials
def test_a_real_run_of_two_ranks_runs_it_once(workplace, tiny_model_dir):
    argv = ["sft", "--config", "recipe.yaml", "--model_name_or_path", str(tiny_model_dir), "--output_dir", "out"]
    assert main([*argv, "--num_processes", "2", "--plan_check", "off"]) == 0
    assert (workplace / "finished.txt").read_text().splitlines() == [str(workplace / "out")]
    assert (workplace / "out" / "adapter").is_dir()
