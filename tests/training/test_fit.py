from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments

from hf_recipes.models.methods.lora import LoraSettings, attach_lora
from hf_recipes.models.methods.prefix import PrefixSettings, attach_prefix
from hf_recipes.models.precision import Precision
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training import fit
from hf_recipes.training.activations import measure_activations
from hf_recipes.training.checkpointing import ALL_LAYERS, LADDER, NONE
from hf_recipes.training.free_memory import MARGIN, training_state_bytes

FP32 = Precision("float32", False, False)
LONGEST = 61  # padded to 64


def make_model():
    return attach_lora(make_tiny_llama(num_hidden_layers=12), LoraSettings(r=2, dropout=0.0))


@dataclass(frozen=True)
class Rows:
    longest: int = LONGEST
    packed: bool = False
    count: int = 1000


def decide(monkeypatch, model, arguments, free, *, given=(), rows=1000, **values):
    """`fit_in_memory` on a machine with `free` bytes."""
    monkeypatch.setattr(fit, "free_bytes", lambda device: free)
    recipe = Recipe("test", values, frozenset(given))
    return fit.fit_in_memory(model, recipe, arguments, FP32, Rows(count=rows))


def free_for(model, arguments, activations):
    """Free memory that leaves `activations` bytes once margin, gradients and optimizer states are taken off."""
    return (activations + training_state_bytes(model, str(arguments.optim), 1)) / (1 - MARGIN)


@pytest.mark.parametrize("way", LADDER[:-1], ids=lambda way: way.name)
def test_no_more_is_recomputed_than_memory_asks_for(way, monkeypatch, tmp_path, caplog):
    model, arguments = make_model(), tiny_arguments(tmp_path, per_device_train_batch_size=3)
    cost = measure_activations(model, packed=False, autocast_dtype=None)
    free = free_for(model, arguments, way.kept_bytes(cost, 3, 64) + 1)
    with caplog.at_level("INFO", logger="hf_recipes"):
        facts = decide(monkeypatch, model, arguments, free)
    assert arguments.activation_checkpointing == arguments.gradient_checkpointing == (way is not NONE)
    assert (arguments.activation_checkpointing_kwargs or {}) == (way.kwargs or {})
    assert facts["activation_checkpointing"] == (way is not NONE)
    assert f"Activation checkpointing: {way.name} (a step of 3 × 64 tokens" in caplog.text


def test_too_little_memory_for_anything_is_told(monkeypatch, tmp_path, caplog):
    model, arguments = make_model(), tiny_arguments(tmp_path)
    decide(monkeypatch, model, arguments, free=1000)
    assert "yet a step may not fit" in caplog.text
    assert "lower per_device_train_batch_size or max_length" in caplog.text
    assert arguments.activation_checkpointing


@pytest.mark.parametrize("asked", [True, False])
def test_what_the_recipe_says_is_kept_unmeasured(asked, monkeypatch, tmp_path):
    arguments = tiny_arguments(tmp_path, activation_checkpointing=asked)
    assert decide(monkeypatch, None, arguments, 1, given=["activation_checkpointing"]) == {}
    assert arguments.activation_checkpointing == asked


@pytest.mark.parametrize("launcher", ["ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"])
def test_a_model_yet_to_be_sharded_is_not_measured(launcher, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv(launcher, "true")
    with caplog.at_level("INFO", logger="hf_recipes"):
        assert decide(monkeypatch, None, tiny_arguments(tmp_path), 1) == {}
    assert "stay as given" in caplog.text


def test_a_prefix_lives_in_the_cache_and_is_never_recomputed(monkeypatch, tmp_path):
    model, arguments = attach_prefix(make_tiny_llama(), PrefixSettings(4)), tiny_arguments(tmp_path)
    decide(monkeypatch, model, arguments, free=1000)
    assert not arguments.activation_checkpointing


@pytest.mark.parametrize(("rows_that_fit", "rows"), [(1, 1), (3, 3), (5, 4), (12, 12), (50, 12)])
def test_the_largest_micro_batch_that_fits_keeps_the_global_batch(rows_that_fit, rows, monkeypatch, tmp_path):
    """12 rows an update can be cut into 1, 2, 3, 4, 6 or 12."""
    model = make_model()
    arguments = tiny_arguments(tmp_path, per_device_train_batch_size=2, gradient_accumulation_steps=6)
    cost = measure_activations(model, packed=False, autocast_dtype=None)
    free = free_for(model, arguments, NONE.kept_bytes(cost, rows_that_fit, 64) + 1)
    rate = arguments.learning_rate
    decide(monkeypatch, model, arguments, free, auto_micro_batch=True)
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (rows, 12 // rows)
    assert arguments.learning_rate == rate
    assert not arguments.activation_checkpointing


def test_a_micro_batch_is_no_larger_than_there_are_rows(monkeypatch, tmp_path):
    arguments = tiny_arguments(tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=100)
    decide(monkeypatch, make_model(), arguments, 1e12, rows=30, auto_micro_batch=True)
    assert (arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps) == (25, 4)


def test_with_checkpointing_asked_for_more_rows_fit(monkeypatch, tmp_path):
    model = make_model()
    arguments = tiny_arguments(
        tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=8, activation_checkpointing=True
    )
    cost = measure_activations(model, packed=False, autocast_dtype=None)
    free = free_for(model, arguments, ALL_LAYERS.kept_bytes(cost, 8, 64) + 1)
    assert NONE.kept_bytes(cost, 8, 64) > ALL_LAYERS.kept_bytes(cost, 8, 64)
    decide(monkeypatch, model, arguments, free, given=["activation_checkpointing"], auto_micro_batch=True)
    assert arguments.per_device_train_batch_size == 8


@given(st.integers(1, 500))
def test_divisors_are_all_and_fall(number):
    found = fit.divisors_downwards(number)
    assert set(found) == {size for size in range(1, number + 1) if number % size == 0}
    assert found == sorted(found, reverse=True)


@pytest.mark.gpu
def test_a_batch_said_to_fit_does_fit_on_a_gpu(tmp_path):
    """Fill the card until little is left, let the micro-batch be chosen, and train a step of the longest rows."""
    model = attach_lora(
        make_tiny_llama(hidden_size=512, intermediate_size=1408, num_hidden_layers=8), LoraSettings(r=8, dropout=0.0)
    ).to("cuda")
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(max(0, free - 2 * 1024**3), dtype=torch.uint8, device="cuda")
    arguments = tiny_arguments(tmp_path, use_cpu=False, per_device_train_batch_size=1, gradient_accumulation_steps=256)
    recipe = Recipe("test", {"auto_micro_batch": True}, frozenset())
    fit.fit_in_memory(model, recipe, arguments, FP32, Rows(longest=256))
    rows = arguments.per_device_train_batch_size
    ids = torch.randint(3, 500, (rows, 256), device="cuda")
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert rows > 1 and ballast.numel()
