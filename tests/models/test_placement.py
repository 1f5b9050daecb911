from __future__ import annotations

import json
import logging

import pytest

from hf_recipes.models.base import load_base
from hf_recipes.models.placement import FSDP, ZERO3, device_map_for, rank_device, sharded_by
from hf_recipes.models.source import find_model


@pytest.fixture
def two_ranks(monkeypatch):
    """What torchrun leaves in the environment, before there is a process group."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")


@pytest.fixture
def two_gpus(monkeypatch):
    import torch

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)


def test_t3_a_spread_device_map_is_left_out_under_a_launcher_and_told(two_ranks, caplog, tiny_model_dir):
    with caplog.at_level(logging.WARNING):
        model = load_base(find_model(str(tiny_model_dir)), dtype="fp32", device_map="auto")
    assert not hasattr(model, "hf_device_map")
    assert "device_map 'auto' is left out under a launcher: one device a rank" in caplog.text


def test_t3_a_quantised_base_goes_to_its_ranks_device(two_ranks, two_gpus, caplog):
    assert device_map_for("auto", quantized=True) == {"": "cuda:1"}
    assert "one device a rank (cuda:1)" in caplog.text
    caplog.clear()
    assert device_map_for({"": "cuda:1"}, quantized=True) == {"": "cuda:1"}
    assert device_map_for(None, quantized=True) == {"": "cuda:1"}
    assert device_map_for(None, quantized=False) is None
    assert not caplog.text


def test_in_one_process_a_device_map_is_the_callers_business(two_gpus):
    assert device_map_for("auto", quantized=False) == "auto"
    assert device_map_for(None, quantized=True) == {"": "cuda:0"}


def test_a_run_on_the_cpu_of_a_gpu_machine_stays_there(two_gpus, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert rank_device() == "cpu"


def test_zero3_gets_no_device_map(monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")
    assert sharded_by() == ZERO3
    assert device_map_for(None, quantized=True) is None
    assert device_map_for("auto", quantized=True) is None


def test_the_stage_in_a_deepspeed_file_is_seen(monkeypatch, tmp_path):
    # accelerate names the file in a rank's environment, and leaves its own variable for the stage out
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    file = tmp_path / "deepspeed.json"
    monkeypatch.setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", str(file))
    for stage, sharding in ((3, ZERO3), (2, None)):
        file.write_text(json.dumps({"zero_optimization": {"stage": stage}}))
        assert sharded_by() == sharding
    file.write_text("{")
    assert sharded_by() is None


def test_sharding_is_seen_in_what_accelerate_launch_sets(monkeypatch):
    assert sharded_by() is None
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert sharded_by() == FSDP
