"""What the forms of a run are made from: the base wherever it lies, and in the 16 bits that keep its values."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import save_file

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.training.export import ExportOptions, _model_place, _sixteen_bits

FACTS = {"base_model": {"name_or_path": "some/model"}}


def model(directory, **config):
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({"w": torch.ones(2)}, directory / "model.safetensors")
    return directory


@pytest.fixture
def run(tmp_path):
    """A run whose result is an adapter for a model of the Hub, and the Hub's cache, which holds that model in fp16."""
    run = RunDirectory(tmp_path / "run")
    run.adapter.mkdir(parents=True)
    (run.adapter / "adapter_config.json").write_text('{"base_model_name_or_path": "some/model"}')
    return run


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    place = tmp_path / "hub" / "models--some--model"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("a" * 40)
    return model(place / "snapshots" / ("a" * 40), dtype="float16")


def test_a_base_of_the_hub_is_looked_at_in_the_cache(run, cached):
    place = _model_place(run, FACTS, ExportOptions())
    assert place == cached
    assert _sixteen_bits(place) == "fp16"  # bf16 has three bits less


def test_a_base_named_by_the_user_is_the_one_that_counts(run, cached, tmp_path):
    other = model(tmp_path / "other", torch_dtype="bfloat16")
    place = _model_place(run, FACTS, ExportOptions(base=str(other)))
    assert place == other
    assert _sixteen_bits(place) == "bf16"
    shutil.rmtree(cached)
    assert _model_place(run, FACTS, ExportOptions(base=str(other))) == other


def test_a_whole_model_is_what_its_own_config_says(tmp_path):
    run = RunDirectory(tmp_path / "run")
    model(run.path / "model", dtype="float16")
    assert _sixteen_bits(_model_place(run, FACTS, ExportOptions())) == "fp16"
