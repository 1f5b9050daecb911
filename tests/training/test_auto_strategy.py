from __future__ import annotations

import json
import logging
import subprocess

import pytest

from hf_recipes.core.accelerators import find_accelerator
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training import auto_strategy
from hf_recipes.training.auto_strategy import AutoChoice, as_arguments, choose_here, known_device, planned_choice

T4 = find_accelerator("T4")


@pytest.fixture
def recipe(tmp_path):
    """A full fine-tune of a model of so many layers of 4,096, whose weights nobody needs to have."""

    def make(layers, **more):
        folder = tmp_path / f"model-{layers}"
        folder.mkdir()
        config = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": layers,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32000,
        }
        (folder / "config.json").write_text(json.dumps(config))
        values = {"model_name_or_path": str(folder), "method": "full", "max_length": 512, "datasets": ["owner/data"]}
        file = tmp_path / f"recipe-{layers}.json"
        file.write_text(json.dumps({**values, "per_device_train_batch_size": 4, **more}))
        return load_recipe(str(file))

    return make


def test_a_job_that_fits_on_each_device_stays_ddp(recipe, caplog):
    with caplog.at_level(logging.INFO):
        choice = planned_choice(recipe(1, method="lora"), 4, T4)
    assert choice == AutoChoice("auto")
    assert "strategy: auto takes ddp over 4 × " in caplog.text


def test_a_larger_one_is_shared_and_why_is_told(recipe, caplog):
    # 2.7e8 parameters in the embeddings and 2.0e8 a layer: 16 bytes each are 7.5 GB and 3.2 GB a layer, of 14.6 GiB.
    with caplog.at_level(logging.INFO):
        choice = planned_choice(recipe(4), 4, T4)
    assert choice.strategy not in ("auto", "ddp", "single")
    assert f"strategy: auto takes {choice.strategy}: " in caplog.text
    keys = dict(zip(choice.arguments[::2], choice.arguments[1::2], strict=True))
    per_rank = int(keys["--per_device_train_batch_size"]) * int(keys["--gradient_accumulation_steps"])
    assert per_rank == 4  # the global batch stays


def test_what_fits_nowhere_is_left_to_the_ranks_check(recipe, caplog):
    with caplog.at_level(logging.INFO):
        assert planned_choice(recipe(80, strategy="auto"), 2, T4) == AutoChoice("auto")
    assert "needs" in caplog.text


def test_checkpointing_that_the_recipe_decided_stays(recipe):
    decided = {
        "strategy": "zero2",
        "num_processes": 4,
        "per_device_train_batch_size": 2,
        "activation_checkpointing": True,
        "activation_checkpointing_kwargs": {"every_n_layers": 2},
    }
    all_open = as_arguments(decided, recipe(1))
    assert all_open == [
        *("--per_device_train_batch_size", "2", "--activation_checkpointing", "true"),
        *("--activation_checkpointing_kwargs.every_n_layers", "2"),
    ]
    given = recipe(2, activation_checkpointing=False)
    assert as_arguments(decided, given) == ["--per_device_train_batch_size", "2"]


def test_one_rank_or_unknown_devices_ask_no_planner(recipe, monkeypatch):
    monkeypatch.setattr(auto_strategy, "planned_choice", lambda *_: pytest.fail("asked"))
    monkeypatch.setattr(auto_strategy, "known_device", lambda: T4)
    assert choose_here(recipe(1), 1) == AutoChoice("auto")
    monkeypatch.setattr(auto_strategy, "known_device", lambda: None)
    assert choose_here(recipe(2), 4) == AutoChoice("auto")


@pytest.mark.parametrize(
    ("names", "key"),
    [("Tesla T4\nTesla T4\n", T4.key), ("Tesla T4\nNVIDIA L4\n", None), ("", None), ("GeForce 256\n", None)],
)
def test_devices_are_known_by_the_drivers_tool(names, key, monkeypatch):
    told = subprocess.CompletedProcess((), 0, names, "")
    monkeypatch.setattr(auto_strategy.subprocess, "run", lambda *_, **__: told)
    found = known_device()
    assert (found.key if found else None) == key


def test_a_machine_without_the_tool_has_no_known_device(monkeypatch):
    monkeypatch.setattr(auto_strategy, "_QUERY", ("no-such-tool",))
    assert known_device() is None
