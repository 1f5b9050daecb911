from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hf_recipes.core.errors import UserError
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.names import Sizes
from hf_recipes.recipe.keys import RecipeArguments
from hf_recipes.training.launch import launch_command
from hf_recipes.training.strategy_file import check_strategy, configured_processes, recipe_sizes, strategy_file


def test_a_strategy_becomes_accelerates_file_in_the_run_directory(tmp_path):
    file = strategy_file("zero2", 4, tmp_path / "run")
    content = yaml.safe_load((tmp_path / "run/accelerate.yaml").read_text())
    assert file == str(tmp_path / "run/accelerate.yaml")
    assert content["distributed_type"] == "DEEPSPEED"
    assert content["num_processes"] == 4
    settings = json.loads((tmp_path / "run/deepspeed.json").read_text())
    assert settings["zero_optimization"]["stage"] == 2
    assert content["deepspeed_config"]["deepspeed_config_file"] == str(tmp_path / "run/deepspeed.json")


@pytest.mark.parametrize(("strategy", "ranks"), [("auto", 2), ("ddp", 2), ("single", 1), ("tp", 2), ("pp", 4)])
def test_what_accelerate_does_by_itself_needs_no_file(tmp_path, strategy, ranks):
    assert strategy_file(strategy, ranks, tmp_path / "run") is None
    assert not (tmp_path / "run").exists()


def test_a_strategy_for_other_numbers_of_ranks_is_refused(tmp_path):
    with pytest.raises(UserError, match="strategy: fsdp needs several devices"):
        strategy_file("fsdp", 1, tmp_path)


def test_a_config_file_alone_says_how_the_ranks_share_the_work():
    command = launch_command("m", ["--x"], 2, "ds.yaml")
    assert "--multi_gpu" not in command  # accelerate would then not look into the file
    assert command[-3:] == ["-m", "m", "--x"]
    assert "--num_processes" in command


def test_two_runs_on_a_machine_do_not_meet_at_one_port(tmp_path):
    file = tmp_path / "a.yaml"
    for text, ports in (
        ("num_machines: 1\n", 1),
        ("num_machines: 1\nmain_process_port: 29511\n", 0),
    ):
        file.write_text(text)
        assert launch_command("m", [], 2, str(file)).count("--main_process_port") == ports
    written = yaml.safe_load(Path(strategy_file("zero2", 4, tmp_path / "run")).read_text())
    assert written["main_process_port"] == 0


def test_sizes_are_read_from_a_recipe_and_from_its_keys(tmp_path):
    values = {"tensor_parallel_size": 2, "pipeline_parallel_size": 4}
    assert recipe_sizes(values) == recipe_sizes(RecipeArguments(**values)) == Sizes(tensor=2, pipeline=4)
    with pytest.raises(UserError, match="tensor_parallel_size is for strategy: tp or pp, and the recipe's is auto"):
        strategy_file("auto", 4, tmp_path, Sizes(tensor=2))


def test_processes_of_a_config_file(tmp_path):
    (tmp_path / "a.yaml").write_text("num_processes: 3\n")
    assert configured_processes(str(tmp_path / "a.yaml")) == 3
    for content, sentence in (("[not, a, mapping]", "holds no keys"), ("a: [", "is no YAML")):
        (tmp_path / "b.yaml").write_text(content)
        with pytest.raises(UserError, match=sentence):
            configured_processes(str(tmp_path / "b.yaml"))
    assert configured_processes(str(tmp_path / "none.yaml")) is None


def test_what_was_launched_is_held_against_the_recipe():
    check_strategy("auto", Layout(4, 1, "ddp"))
    check_strategy("zero2", Layout(4, 1, "zero2"))
    with pytest.raises(UserError, match="strategy: zero2 means ZeRO-2 over 4 ranks, and the launcher made DDP over 4"):
        check_strategy("zero2", Layout(4, 1, "ddp"))
