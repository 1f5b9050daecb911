"""Every file that can be written, read back by accelerate's own loader and turned into its plugins."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
import yaml
from strategy_helpers import GIB

from hf_recipes.core.errors import UserError
from hf_recipes.plan.layout import LIVE_PARAMETERS, REDUCE_BUCKET, Layout
from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.accelerate_config import accelerate_config
from hf_recipes.plan.strategy.candidates import CHECKPOINTINGS
from hf_recipes.plan.strategy.complete_recipe import CHECKPOINTING_KWARGS, complete_recipe
from hf_recipes.plan.strategy.deepspeed_config import uses_deepspeed
from hf_recipes.plan.strategy.launch_line import needs_accelerate_file
from hf_recipes.plan.strategy.names import STRATEGIES, layout_of
from hf_recipes.plan.strategy.search import Considered
from hf_recipes.plan.strategy.step_cost import StepCost
from hf_recipes.plan.strategy.write import write_plan
from hf_recipes.recipe.resolve import load_recipe

VALUES = {
    "model_name_or_path": "some/model",
    "method": "lora",
    "datasets": [{"path": "data.jsonl"}],
    "learning_rate": 2e-4,
    "per_device_train_batch_size": 1,
    "gradient_checkpointing": True,
    "auto_micro_batch": True,
}
SETTINGS = TrainingSettings(micro_batch=4, accumulation=2, checkpointing="every_2")


def everywhere():
    """Every strategy on one device, on one node and on two."""
    for strategy in STRATEGIES:
        for ranks, nodes in ((1, 1), (8, 1), (16, 2)):
            try:
                layout = layout_of(strategy, ranks, nodes)
            except UserError:
                continue
            yield pytest.param(strategy, layout, id=f"{strategy}-{ranks}x{nodes}")


def considered(layout, settings=SETTINGS):
    memory = MemoryEstimate({"backward": {"weights": float(GIB)}})
    return Considered(layout, settings, memory, StepCost(1.0), True, why="because: it fits")


def written(directory, layout, **more):
    return write_plan(directory, considered(layout), VALUES, **more)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    """Plugins read the environment of a launcher, and set some of it."""
    for name in list(os.environ):
        if name.startswith(("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_")):
            monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", os.environ.copy())


def launched_environment(config_file):
    """What `accelerate launch` would hand to the ranks."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils import prepare_deepspeed_cmd_env, prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    given = ["--config_file", str(config_file), "--main_process_ip", "10.0.0.1", "--main_process_port", "0"]
    given += ["--machine_rank", "1", "x.py"]
    arguments, defaults, from_config = _validate_launch_command(launch_command_parser().parse_args(given))
    if arguments.use_deepspeed:
        fields = [*defaults.deepspeed_config, *(["mixed_precision"] if from_config else [])]
        arguments.deepspeed_fields_from_accelerate_config = ",".join(fields)
        return arguments, prepare_deepspeed_cmd_env(arguments)[1]
    prepare = prepare_multi_gpu_env if arguments.multi_gpu or arguments.use_fsdp else None
    return arguments, prepare(arguments) if prepare else prepare_simple_launcher_cmd_env(arguments)[1]


@pytest.mark.parametrize(("strategy", "layout"), everywhere())
def test_accelerate_loads_and_understands_the_file(strategy, layout, tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file

    plan = written(tmp_path, layout)
    file = tmp_path / "accelerate.yaml"
    assert file.exists() == needs_accelerate_file(layout) == (strategy != "single")
    assert file.exists() == any(str(file) in line for line in plan.launch_lines)
    if not file.exists():
        return
    loaded = load_config_from_file(str(file))
    assert (loaded.num_processes, loaded.num_machines) == (layout.ranks, layout.nodes)
    arguments, environment = launched_environment(file)
    assert int(arguments.nproc_per_node) == layout.ranks_per_node
    assert environment["ACCELERATE_MIXED_PRECISION"] == "no"
    assert environment.get("ACCELERATE_USE_DEEPSPEED") == ("true" if uses_deepspeed(layout) else None)
    assert environment.get("ACCELERATE_USE_FSDP") == ("true" if layout.sharding == "fsdp" else None)
    if layout.nodes > 1:
        assert (arguments.nnodes, arguments.node_rank) == ("2", 1)
        assert arguments.rdzv_endpoint.startswith("10.0.0.1:")
        assert len(plan.launch_lines) == 2


@pytest.mark.parametrize(("strategy", "layout"), [each for each in everywhere() if each.values[1].sharding == "fsdp"])
def test_the_fsdp_plugin_is_what_was_planned(strategy, layout, tmp_path):
    from accelerate import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin
    from torch.distributed.fsdp import CPUOffloadPolicy
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    written(tmp_path, layout)
    _, environment = launched_environment(tmp_path / "accelerate.yaml")
    os.environ.update(environment)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.auto_wrap_policy is transformer_auto_wrap_policy
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    assert plugin.activation_checkpointing is False
    assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) == layout.offload_weights
    hybrid = environment.get("ACCELERATE_USE_PARALLELISM_CONFIG") == "true"
    assert hybrid == (strategy == "hsdp")
    if hybrid:
        mesh = ParallelismConfig()
        assert (mesh.dp_replicate_size, mesh.dp_shard_size, mesh.total_size) == (2, 8, 16)


@pytest.mark.parametrize(("strategy", "layout"), [each for each in everywhere() if uses_deepspeed(each.values[1])])
def test_the_deepspeed_plugin_is_what_was_planned(strategy, layout, tmp_path):
    pytest.importorskip("deepspeed")
    from accelerate.utils import DeepSpeedPlugin

    written(tmp_path, layout)
    _, environment = launched_environment(tmp_path / "accelerate.yaml")
    os.environ.update(environment)
    plugin = DeepSpeedPlugin()
    zero = plugin.deepspeed_config["zero_optimization"]
    assert zero["stage"] == plugin.zero_stage == int(strategy[4])
    assert zero["reduce_bucket_size"] == REDUCE_BUCKET
    assert zero.get("offload_optimizer", {}).get("device", "none") == ("cpu" if layout.offload_optimizer else "none")
    assert zero.get("offload_param", {}).get("device", "none") == ("cpu" if layout.offload_weights else "none")
    assert plugin.zero3_init_flag == (layout.sharding == "zero3")
    if layout.sharding == "zero3":
        assert zero["stage3_max_live_parameters"] == LIVE_PARAMETERS
        assert plugin.zero3_save_16bit_model is True
    for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"):
        assert plugin.deepspeed_config[key] == "auto"


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "zero3_offload_all"])
def test_deepspeed_itself_accepts_its_file(strategy, tmp_path):
    runtime = pytest.importorskip("deepspeed.runtime.zero.config")
    written(tmp_path, layout_of(strategy, 8))
    zero = json.loads((tmp_path / "deepspeed.json").read_text())["zero_optimization"]
    config = runtime.DeepSpeedZeroConfig(**zero)  # refuses unknown keys
    assert config.stage == int(strategy[4])


@pytest.mark.parametrize("checkpointing", CHECKPOINTINGS)
def test_the_recipe_says_what_was_decided_and_nothing_twice(checkpointing):
    settings = replace(SETTINGS, checkpointing=checkpointing)
    done = complete_recipe(VALUES, layout_of("zero2", 8), settings)
    assert done["per_device_train_batch_size"] == 4
    assert done["gradient_accumulation_steps"] == 2
    assert done["num_processes"] == 8
    assert done["strategy"] == "zero2"
    assert done["activation_checkpointing"] == (checkpointing != "off")
    assert done.get("activation_checkpointing_kwargs") == (CHECKPOINTING_KWARGS[checkpointing] or None)
    assert not {"gradient_checkpointing", "auto_micro_batch"} & set(done)
    assert list(done)[:4] == ["model_name_or_path", "method", "datasets", "learning_rate"]


@pytest.mark.trials
def test_the_checkpointing_kwargs_are_those_of_the_trainer_room():
    from hf_recipes.training.checkpointing import LADDER

    assert list(CHECKPOINTING_KWARGS.values()) == [way.kwargs for way in LADDER]


def test_fsdp_reduces_gradients_at_each_micro_batch():
    given = {**VALUES, "accelerator_config": {"even_batches": False}}
    done = complete_recipe(given, layout_of("fsdp", 8), SETTINGS)
    expected = {"even_batches": False, "gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert done["accelerator_config"] == expected
    assert given["accelerator_config"] == {"even_batches": False}
    once = replace(SETTINGS, accumulation=1)
    assert "accelerator_config" not in complete_recipe(VALUES, layout_of("fsdp", 8), once)
    assert "accelerator_config" not in complete_recipe(VALUES, layout_of("zero2", 8), SETTINGS)


@pytest.mark.parametrize("strategy", ["single", "ddp", "zero3_offload", "fsdp"])
def test_the_written_recipe_is_a_recipe(strategy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written("plan", layout_of(strategy, 1 if strategy == "single" else 8))
    text = (tmp_path / "plan" / "recipe.yaml").read_text()
    assert text.startswith("# because: it fits\n# Start it where paths below begin, with:\n#   ")
    recipe = load_recipe("plan/recipe.yaml")
    assert recipe.get("per_device_train_batch_size") == 4
    assert recipe.get("activation_checkpointing_kwargs") == {"every_n_layers": 2}
    assert recipe.get("learning_rate") == 2e-4
    assert recipe.get("strategy") == strategy
    synced = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    assert recipe.get("accelerator_config") == (synced if strategy == "fsdp" else None)


def test_files_that_are_there_are_refused_and_replaced_whole(tmp_path):
    written(tmp_path, layout_of("zero2", 8))
    before = (tmp_path / "recipe.yaml").read_text()
    with pytest.raises(UserError, match=r"recipe\.yaml' is there already"):
        written(tmp_path, layout_of("ddp", 8))
    assert (tmp_path / "recipe.yaml").read_text() == before
    plan = written(tmp_path, layout_of("ddp", 8), overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"recipe.yaml", "accelerate.yaml"}
    assert {path.name for path in plan.files} == {"recipe.yaml", "accelerate.yaml"}
    assert yaml.safe_load((tmp_path / "accelerate.yaml").read_text())["distributed_type"] == "MULTI_GPU"


def test_what_others_launch_is_not_written(tmp_path):
    with pytest.raises(UserError, match="planned but not launched by hf-recipes"):
        written(tmp_path / "plan", Layout(8, 2, "fsdp", tensor=2, pipeline=2))
    assert not (tmp_path / "plan").exists()


def test_a_written_recipe_says_its_sizes(tmp_path):
    written(tmp_path, Layout(8, 1, "fsdp", tensor=4))
    recipe, file = (yaml.safe_load((tmp_path / name).read_text()) for name in ("recipe.yaml", "accelerate.yaml"))
    assert (recipe["strategy"], recipe["tensor_parallel_size"]) == ("tp", 4)
    assert file["distributed_type"] == "MULTI_GPU"  # the ranks cut the model themselves
    written(tmp_path, Layout(8, 1, "fsdp", context=4), overwrite=True)
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    assert (recipe["strategy"], recipe["context_parallel_size"]) == ("cp", 4)
    assert "tensor_parallel_size" not in recipe
    _, environment = launched_environment(tmp_path / "accelerate.yaml")
    assert environment["PARALLELISM_CONFIG_CP_SIZE"] == "4"
    assert environment["PARALLELISM_CONFIG_DP_SHARD_SIZE"] == "2"


def test_launch_lines(tmp_path):
    (alone,) = written(tmp_path / "a", layout_of("single", 1)).launch_lines
    assert alone == f"hf-recipes sft --config {tmp_path}/a/recipe.yaml"
    (node,) = written(tmp_path / "b c", layout_of("fsdp", 8)).launch_lines
    files = f"--config '{tmp_path}/b c/recipe.yaml' --config_file '{tmp_path}/b c/accelerate.yaml'"
    assert node == f"hf-recipes sft {files}"
    first, second = written(tmp_path / "d", layout_of("fsdp", 16, 2)).launch_lines
    files = f"--config {tmp_path}/d/recipe.yaml --config_file {tmp_path}/d/accelerate.yaml"
    place = "--machine_rank 0 --main_process_ip FIRST_NODE --main_process_port 29500"
    assert first == f"hf-recipes sft {files} {place} --output_dir RUN_DIR"
    assert second == first.replace("--machine_rank 0", "--machine_rank 1")


def test_offload_reaches_both_configs():
    file = accelerate_config(layout_of("fsdp_offload", 8))
    assert file["fsdp_config"]["fsdp_offload_params"] is True
    assert "mixed_precision" not in file  # the Trainer's, from the recipe
