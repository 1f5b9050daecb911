"""What planning reads of a recipe, held against the model that training really builds."""

from __future__ import annotations

import pytest
import torch

from hf_recipes.models.counts import count_parameters
from hf_recipes.models.precision import Hardware
from hf_recipes.plan.strategy.names import ALL_STRATEGIES
from hf_recipes.recipe.key_table import load_key_table
from hf_recipes.recipe.resolve import recipe_of_keys
from hf_recipes.training.plan_job import (
    checkpointing_name,
    load_config,
    planned_recipe,
    recipe_geometry,
    recipe_settings,
)

GPU, CPU = Hardware("cuda", True), Hardware("cpu", False)


def keys(model, **values):
    return recipe_of_keys(
        [
            "--model_name_or_path",
            str(model),
            *(part for key, value in values.items() for part in (f"--{key}", str(value))),
        ],
        "plan",
    )


def geometry(recipe, hardware=GPU):
    planned = planned_recipe(recipe, hardware)
    return planned, recipe_geometry(planned, load_config(recipe)[1])


@pytest.mark.parametrize(
    "method",
    [
        {"method": "full"},
        {"method": "lora", "lora_r": 4, "lora_target_modules": "all-linear"},
        {"method": "dora", "lora_r": 2},
        {"method": "partial", "trainable_layers": 1},
        {"method": "adapter", "adapter_size": 4},
        {"method": "prefix", "num_virtual_tokens": 5},
        {"method": "ia3"},
        {"method": "lora", "init_lora_weights": "pissa"},
    ],
    ids=lambda method: "-".join(str(value) for value in method.values()),
)
def test_counts_are_those_of_the_model_that_is_trained(tiny_model_dir, method):
    from transformers import AutoModelForCausalLM

    from hf_recipes.models.stored import WHOLE_METHODS
    from hf_recipes.training.model import attach_method

    recipe = keys(tiny_model_dir, **method)
    planned, shapes = geometry(recipe)
    live = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    if method["method"] not in WHOLE_METHODS:
        live.requires_grad_(False)
    trained, total = count_parameters(attach_method(live, planned, "CAUSAL_LM"))
    assert (shapes.trained, shapes.total) == (trained, total)


def test_nothing_is_loaded_and_trl_is_not_imported(tiny_model_dir):
    import subprocess
    import sys

    code = (
        "import sys\nfrom hf_recipes.models.precision import Hardware\n"
        "from hf_recipes.recipe.resolve import recipe_of_keys\nfrom hf_recipes.training import plan_job as job\n"
        f"recipe = recipe_of_keys(['--model_name_or_path', {str(tiny_model_dir)!r}], 'plan')\n"
        "planned = job.planned_recipe(recipe, Hardware('cuda', True))\n"
        "job.recipe_geometry(planned, job.load_config(recipe)[1])\nprint('trl' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"


def test_settings_follow_the_hardware_planned_for(tiny_model_dir):
    recipe = keys(tiny_model_dir, method="lora")
    planned, shapes = geometry(recipe)
    there = recipe_settings(planned, shapes, 61)
    assert (there.weights_dtype, there.trained_dtype, there.autocast_dtype) == ("bfloat16", "float32", "bfloat16")
    assert there.tokens == 64  # as the collator pads
    here = recipe_settings(planned_recipe(recipe, CPU), shapes, 61)
    assert (here.weights_dtype, here.autocast_dtype) == ("float32", None)


def test_settings_are_the_recipes(tiny_model_dir):
    recipe = keys(
        tiny_model_dir,
        method="qlora",
        optim="paged_adamw_8bit",
        per_device_train_batch_size=3,
        gradient_accumulation_steps=5,
        attn_implementation="eager",
        activation_checkpointing="true",
        lora_dropout=0.1,
        packing="true",
        loss_kernel="liger",
    )
    planned, shapes = geometry(recipe)
    settings = recipe_settings(planned, shapes, 32, supervised_share=0.25)
    assert (settings.quantization, settings.double_quantization) == ("nf4", True)
    assert (settings.optimizer, settings.micro_batch, settings.accumulation) == ("paged_adamw_8bit", 3, 5)
    assert (settings.attention, settings.checkpointing, settings.loss) == ("eager", "all", "fused")
    assert (settings.lora_dropout, settings.packed, settings.supervised_share) == (0.1, True, 0.25)
    eight = keys(tiny_model_dir, method="qlora", load_in_8bit="true")
    assert recipe_settings(planned_recipe(eight, GPU), shapes, 32).quantization == "int8"


@pytest.mark.parametrize(
    ("on", "kwargs", "name"),
    [
        (False, {"every_n_layers": 2}, "off"),
        (True, None, "all"),
        (True, {"every_n_layers": 3}, "every_3"),
        (True, {"selective": True}, "selective"),
        (True, {"offload": True}, "host"),
        (True, {"use_reentrant": False}, "all"),
    ],
)
def test_checkpointing_has_the_planners_name(on, kwargs, name):
    assert checkpointing_name(on, kwargs) == name


def test_the_recipes_strategies_are_the_planners():
    choices = load_key_table()["strategy"].choices
    assert set(choices) == {"auto", *ALL_STRATEGIES}


def test_full_training_keeps_the_dtype_asked_for(tiny_model_dir):
    planned, shapes = geometry(keys(tiny_model_dir, method="full", dtype="bf16"))
    assert recipe_settings(planned, shapes, 32).trained_dtype == "bfloat16"
    planned, shapes = geometry(keys(tiny_model_dir, method="full"))
    assert recipe_settings(planned, shapes, 32).trained_dtype == str(torch.float32).removeprefix("torch.")
