"""The shipped launch configurations: each is what the planner writes for its layout, says what it costs, and is loaded
by accelerate."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hf_recipes.cli.main import main
from hf_recipes.core.errors import UserError
from hf_recipes.plan.strategy.accelerate_config import accelerate_config
from hf_recipes.plan.strategy.deepspeed_config import deepspeed_config, uses_deepspeed
from hf_recipes.plan.strategy.names import Sizes, layout_of
from hf_recipes.recipe.shipped import accelerate_files, copy_recipe, shipped_recipes, summary

FILES = accelerate_files()
LAYOUTS = {
    "ddp": layout_of("ddp", 8),
    "ddp_2nodes": layout_of("ddp", 16, 2),
    "ddp_cpu": layout_of("ddp", 2),
    "fsdp2": layout_of("fsdp", 8),
    "fsdp2_hybrid": layout_of("hsdp", 16, 2),
    "fsdp2_offload": layout_of("fsdp_offload", 8),
    "zero1": layout_of("zero1", 8),
    "zero2": layout_of("zero2", 8),
    "zero2_2nodes": layout_of("zero2", 16, 2),
    "zero2_offload": layout_of("zero2_offload", 8),
    "zero3": layout_of("zero3", 8),
    "zero3_2nodes": layout_of("zero3", 16, 2),
    "zero3_offload": layout_of("zero3_offload", 8),
    "zero3_offload_all": layout_of("zero3_offload_all", 8),
    "tp": layout_of("tp", 8),
    "tp_fsdp": layout_of("tp", 8, sizes=Sizes(tensor=2)),
    "cp": layout_of("cp", 8, sizes=Sizes(context=4)),
}
# What a file says other than its layout, for a reason that it gives.
OTHERWISE = {"ddp_cpu": {"use_cpu": True}}
EACH = pytest.mark.parametrize("name", LAYOUTS)


def text_of(name):
    return FILES[f"accelerate/{name}"].read_text(encoding="utf-8")


def json_of(name):
    return FILES[f"accelerate/{name}"].with_name(f"{name.removesuffix('_2nodes')}.json")


def test_each_way_has_a_file_and_each_file_a_way():
    assert {f"accelerate/{name}" for name in LAYOUTS} == set(FILES)
    folder = next(iter(FILES.values())).parent
    used = {json_of(name) for name, layout in LAYOUTS.items() if uses_deepspeed(layout)}
    assert set(folder.glob("*.json")) == used
    assert not any(name.startswith("accelerate/") for name in shipped_recipes())


@EACH
def test_it_is_what_the_planner_writes(name):
    layout = LAYOUTS[name]
    expected = {**accelerate_config(layout, json_of(name).name), **OTHERWISE.get(name, {})}
    assert yaml.safe_load(text_of(name)) == expected
    if uses_deepspeed(layout):
        assert json.loads(json_of(name).read_text()) == deepspeed_config(layout)


@EACH
def test_every_key_says_what_it_costs(name):
    lines = text_of(name).splitlines()
    assert summary(FILES[f"accelerate/{name}"]).endswith((".", "sweet spot for fine-tuning."))
    for number, line in enumerate(lines):
        if re.match(r" *\w+: \S", line):
            assert "  # " in line or lines[number - 1].lstrip().startswith("# "), line
    if uses_deepspeed(LAYOUTS[name]):
        head = text_of(name).split("compute_environment:")[0]
        content = json.loads(json_of(name).read_text())
        for key in (*content.pop("zero_optimization"), *content):
            assert f"#   {key}: " in head, key


@EACH
def test_accelerate_loads_it_and_starts_as_many_ranks(name):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    layout, file = LAYOUTS[name], str(FILES[f"accelerate/{name}"])
    loaded = load_config_from_file(file)  # refuses unknown keys
    assert (loaded.num_processes, loaded.num_machines) == (layout.ranks, layout.nodes)
    arguments, _, _ = _validate_launch_command(launch_command_parser().parse_args(["--config_file", file, "x.py"]))
    launched = (arguments.multi_gpu, arguments.use_fsdp, arguments.use_deepspeed)
    sharded = layout.sharding == "fsdp" and layout.tensor == 1
    assert launched == (not sharded and not uses_deepspeed(layout), sharded, uses_deepspeed(layout))
    if layout.nodes == 1:
        assert arguments.main_process_port == 0  # any free one: two runs on a machine do not meet


@pytest.mark.trials
def test_the_cpu_file_starts_two_cpu_ranks(tmp_path):
    """A MULTI_CPU file would start one."""
    script = tmp_path / "ranks.py"
    script.write_text(
        "import sys\n"
        "from accelerate import PartialState\n"
        "state = PartialState(cpu=True)  # as the Trainer makes it where there is no device\n"
        "told = f'RANKS {state.num_processes} {state.distributed_type.name} {state.device.type}\\n'\n"
        "sys.stdout.write(told)  # in one piece: the ranks share the pipe\n"
        "state.destroy_process_group()\n"
    )
    file = str(FILES["accelerate/ddp_cpu"])
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", file, str(script)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout.count("RANKS 2 MULTI_CPU cpu") == 2, done.stderr[-3000:]


def test_a_copy_names_its_own_deepspeed_file(tmp_path):
    yaml_file, json_file = copy_recipe("accelerate/zero3", tmp_path)
    assert json_file == tmp_path / "zero3.json"
    named = yaml.safe_load(yaml_file.read_text())["deepspeed_config"]["deepspeed_config_file"]
    assert json.loads(Path(named).read_text())["zero_optimization"]["stage"] == 3
    assert "#   stage: 3" in yaml_file.read_text()  # the comments go with it
    yaml_file.unlink()
    with pytest.raises(UserError, match=r"zero3\.json' exists already"):
        copy_recipe("accelerate/zero3", tmp_path)
    assert not yaml_file.exists()
    assert copy_recipe("accelerate/ddp.yaml", tmp_path / "mine.yaml") == [tmp_path / "mine.yaml"]


def test_they_are_listed_apart_from_recipes(capsys, tmp_path):
    assert main(["ls", "--json"]) == 0
    listed = {each["name"]: each["kind"] for each in json.loads(capsys.readouterr().out)}
    assert (listed["accelerate/zero2"], listed["smollm2/sft_lora"]) == ("accelerate", "recipe")
    assert main(["ls"]) == 0
    recipes, configurations = capsys.readouterr().out.split("\n\n")
    assert "accelerate/" not in recipes
    assert "accelerate/fsdp2_hybrid  " in configurations
    assert main(["cp", "accelerate/zero1", str(tmp_path)]) == 0
    assert f"hf-recipes sft --config RECIPE --config_file {tmp_path}/zero1.yaml" in capsys.readouterr().out
