"""Whose file it is, commands in scripts, strategies in DeepSpeed and FSDP settings, and where files lie."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_recipes.convert import TOOL_NAMES
from hf_recipes.convert.answers import Config
from hf_recipes.convert.engine import convert
from hf_recipes.convert.places import finder, locate, reader
from hf_recipes.convert.shell import parse_command
from hf_recipes.convert.strategies import deepspeed, fsdp, fsdp_config
from hf_recipes.convert.tools import TOOLS, tell_tool
from hf_recipes.core.errors import UserError
from hf_recipes.recipe.yaml_lines import parse_scalar

FILE = Path("x.yaml")


@pytest.mark.parametrize(
    ("keys", "tool"),
    [
        (["base_model", "datasets", "micro_batch_size"], "axolotl"),
        (["model_name_or_path", "stage", "dataset", "lora_rank"], "llamafactory"),
        (["model", "dataset", "train_type", "lora_rank"], "swift"),
        (["model_name_or_path", "dataset_name", "use_peft"], "trl"),
    ],
)
def test_the_owner_is_told_from_the_keys(keys, tool):
    assert tell_tool(keys, FILE).name == tool


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        (["learning_rate"], "no key tells of axolotl, llamafactory, swift, trl"),
        (["base_model", "stage"], "axolotl or llamafactory"),
        (["model_name_or_path", "method", "dataset_num_proc"], "a recipe already"),
    ],
)
def test_what_cannot_be_told_is_one_sentence(keys, sentence):
    with pytest.raises(UserError, match=sentence):
        tell_tool(keys, FILE)


SCRIPT = """# 17 GiB
pip install 'transformers==5.0' -U
nproc=2

export CUDA_VISIBLE_DEVICES=0,1
NPROC_PER_NODE=$nproc \\
swift sft \\
    --model org/model \\
    --dataset 'org/a#500' org/b#3 \\
    --learning-rate=1e-4 \\
    --packing 2>&1 | tee log.txt  # a comment
swift infer --model other
"""


def test_a_script_gives_the_flags_of_its_training_command():
    keys, tool = parse_command(SCRIPT, FILE, parse_scalar)
    assert tool == "swift"
    assert keys == {
        "CUDA_VISIBLE_DEVICES": "0,1", "NPROC_PER_NODE": 2, "model": "org/model", "dataset": ["org/a#500", "org/b#3"],
        "learning_rate": 1e-4, "packing": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("python train.py", "0 training commands found"),
        ("swift sft --model a\nswift sft --model b", "2 training commands found"),
        ("swift sft --config sft.yaml", "reads its keys from 'sft.yaml'"),
        ("llamafactory-cli train x.yaml", "reads its keys from 'x.yaml'"),
        ("swift sft --seed 1 --seed 2", "--seed is given twice"),
        ("swift sft --save_steps $(expr 4 / 2)", "computed by the shell"),
        ("swift sft --model 'a", "mend its quotes"),
    ],
)
def test_a_script_that_cannot_be_read_is_one_sentence(text, sentence):
    with pytest.raises(UserError, match=sentence.replace("$", r"\$")):
        parse_command(text, FILE, parse_scalar)


def zero(stage, **offload):
    return {
        "zero_optimization": {"stage": stage, **{f"offload_{key}": {"device": where} for key, where in offload.items()}}
    }


@pytest.mark.parametrize(
    ("value", "strategy"),
    [
        (zero(0), "ddp"),
        (zero(1), "zero1"),
        (zero(2, optimizer="none"), "zero2"),
        (zero(2, optimizer="cpu"), "zero2_offload"),
        (zero(3), "zero3"),
        (zero(3, optimizer="cpu"), "zero3_offload"),
        (zero(3, optimizer="cpu", param="cpu"), "zero3_offload_all"),
        ("read.json", "zero3_offload"),
        ("zero2", "zero2"),
        ("deepspeed_configs/zero3_bf16.json", "zero3"),
        ("zero3_bf16_cpuoffload_all.json", "zero3_offload_all"),
        ("examples/deepspeed/ds_z2_offload_config.json", "zero2_offload"),
        ("ds_z0_config.json", "ddp"),
    ],
)
def test_deepspeed_is_a_strategy_by_what_it_shards(value, strategy):
    files = {"read.json": zero(3, optimizer="nvme")}
    assert deepspeed(value, Config({}, FILE, read=files.get)).recipe == {"strategy": strategy}


ON_ONE = "on one device write strategy: single"


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"deepspeed": zero(1)}, True),
        ({"deepspeed": "zero2"}, True),
        ({"deepspeed": zero(3)}, True),
        ({"deepspeed": zero(2, optimizer="cpu")}, False),
        ({"deepspeed": zero(0)}, False),
        ({"fsdp": "full_shard auto_wrap"}, True),
        ({"fsdp": "shard_grad_op"}, True),
        ({"fsdp": ["full_shard", "offload"]}, False),
        ({"fsdp": "hybrid_shard"}, False),
        ({"fsdp": "full_shard", "fsdp_config": {"fsdp_version": 2}}, True),
        ({"fsdp_config": {"fsdp_version": 2, "reshard_after_forward": True}}, True),
        ({"fsdp_config": {"activation_checkpointing": True}}, True),
        ({"fsdp_config": {"offload_params": True}}, False),
    ],
)
def test_what_is_of_use_on_several_devices_only_is_told_once(values, told):
    conversion = convert(Config(values, FILE), TOOLS["llamafactory"])
    assert sum(ON_ONE in row.note for row in conversion.rows) == told


def test_a_deepspeed_file_that_tells_nothing_is_told():
    assert deepspeed("mine.json", Config({}, FILE)).kind == "none"
    assert deepspeed(None or "", Config({}, FILE)).kind == "same"
    own = deepspeed({**zero(2), "optimizer": {"type": "Adam"}}, Config({}, FILE))
    assert "its own optimizer" in own.note


@pytest.mark.parametrize(
    ("values", "strategy"),
    [
        ({"fsdp": "full_shard auto_wrap"}, "fsdp"),
        ({"fsdp": ["full_shard", "offload"]}, "fsdp_offload"),
        ({"fsdp": "hybrid_shard", "fsdp_config": {"fsdp_version": 2}}, "hsdp"),
        ({"fsdp_config": {"offload_params": True, "reshard_after_forward": True}}, "fsdp_offload"),
        ({"fsdp": "full_shard", "fsdp_config": {"fsdp_offload_params": "yes"}}, "fsdp_offload"),
    ],
)
def test_fsdp_is_a_strategy_by_both_its_keys(values, strategy):
    config = Config(values, FILE)
    rules = {"fsdp": fsdp, "fsdp_config": fsdp_config}
    assert {rules[key](value, config).recipe["strategy"] for key, value in values.items()} == {strategy}


def test_files_are_found_beside_the_file_and_above_it_and_named_from_the_recipe(tmp_path, monkeypatch):
    repository, elsewhere = tmp_path / "repository", tmp_path / "elsewhere"
    for folder in (repository / "examples" / "lora", repository / "data", elsewhere):
        folder.mkdir(parents=True)
    (repository / "data" / "rows.json").write_text(json.dumps([1]), encoding="utf-8")
    config = repository / "examples" / "lora" / "c.yaml"
    monkeypatch.chdir(elsewhere)
    assert finder(config, Path("recipe.yaml"))("data/rows.json") == "../repository/data/rows.json"
    assert finder(config, repository / "r.yaml")("data/rows.json") == "data/rows.json"
    assert finder(config, Path("recipe.yaml"))(str(repository / "data")) == str(repository / "data")
    assert finder(config, Path("recipe.yaml"))("org/data") is None
    assert reader(config)("data/rows.json") == [1]
    assert reader(config)("data") is None
    assert locate("", config) is None


def test_the_names_that_the_flag_knows_are_those_of_the_tools():
    assert tuple(TOOLS) == TOOL_NAMES
