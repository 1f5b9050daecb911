from __future__ import annotations

import gc

import psutil
import pytest
import torch
from memory_moves import memory_moves
from tiny_models import make_tiny_llama

from hf_recipes.models.methods.lora import LoraSettings, attach_lora
from hf_recipes.training.activations import PROBE_TOKENS, checkpointable_layers, measure_activations
from hf_recipes.training.checkpointing import LADDER, choose_checkpointing
from hf_recipes.training.free_memory import free_bytes, training_state_bytes

WIDE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 8,
    "max_position_embeddings": 4096,
}
ROWS, TOKENS = 4, 512


def wide_model(**overrides):
    model = make_tiny_llama(**{**WIDE, **overrides})
    return attach_lora(model, LoraSettings(r=4, dropout=0.0)).train()


def grown_memory(model):
    """Bytes that a forward pass leaves allocated beside its output, by the profiler's count."""
    ids = torch.randint(3, 500, (ROWS, TOKENS), generator=torch.Generator().manual_seed(0))
    outputs = []

    def forward():
        outputs.append(model.get_base_model().model(input_ids=ids, use_cache=False).last_hidden_state)
        gc.collect()

    grown = sum(memory_moves(forward))
    assert outputs[0].requires_grad
    return grown - outputs[0].nbytes


@pytest.mark.parametrize("way", LADDER[:-1], ids=lambda way: way.name)
def test_every_rung_keeps_the_memory_it_says(way):
    model = wide_model()
    cost = measure_activations(model, packed=False, autocast_dtype=None)
    assert cost.layers == 8
    if way.kwargs is not None:
        switch_on(model.get_base_model(), dict(way.kwargs))
    recomputed = cost.inside(ROWS, TOKENS) / cost.layers if way.kwargs is not None else 0
    said = way.kept_bytes(cost, ROWS, TOKENS) - recomputed  # one layer's, in the backward pass only
    # "All but attention" also keeps attention's log-sums, which are not counted.
    assert grown_memory(model) == pytest.approx(said, rel=0.15 if "selective" in (way.kwargs or {}) else 0.05)


def switch_on(model, kwargs):
    """As the Trainer, and for `selective` TRL, do it."""
    from trl.models import enable_selective_activation_checkpointing

    every = kwargs.pop("every_n_layers", 1)
    if kwargs.pop("selective", False):
        enable_selective_activation_checkpointing(model)
    model.activation_checkpointing_enable(activation_checkpointing_kwargs=kwargs or None, every_n_layers=every)


def test_less_is_kept_on_every_rung_and_the_first_that_fits_is_taken():
    cost = measure_activations(wide_model(), packed=False, autocast_dtype=None)
    kept = [way.kept_bytes(cost, ROWS, TOKENS) for way in LADDER]
    assert kept == sorted(kept, reverse=True)
    for way, size in zip(LADDER, kept, strict=True):
        assert choose_checkpointing(cost, ROWS, TOKENS, size, host_is_apart=True) == (way, True)
    assert choose_checkpointing(cost, ROWS, TOKENS, kept[-1] - 1, host_is_apart=True) == (LADDER[-1], False)
    assert choose_checkpointing(cost, ROWS, TOKENS, 0, host_is_apart=False) == (LADDER[-2], False)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("packed", [False, True])
def test_two_short_rows_foretell_a_long_one(attention, packed):
    """Eager attention keeps its scores, and packed rows a dense mask: both grow with the square of the length."""
    from hf_recipes.training import activations

    model = wide_model(attn_implementation=attention, num_hidden_layers=2)
    cost = measure_activations(model, packed=packed, autocast_dtype=None)
    outside, inside = activations._saved_bytes(model, checkpointable_layers(model), 768, packed, None)
    assert cost.outside(1, 768) == pytest.approx(outside, rel=0.01)
    assert cost.inside(1, 768) == pytest.approx(inside, rel=0.01)
    assert (cost.inside_per_token_squared > 0) == (attention == "eager" or packed)


def test_measuring_leaves_no_trace():
    model = wide_model(num_hidden_layers=2).eval()
    state, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    measure_activations(model, packed=True, autocast_dtype=torch.bfloat16)
    assert not any(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_with_few_words_is_measured_too():
    cost = measure_activations(wide_model(vocab_size=16, num_hidden_layers=1), packed=False, autocast_dtype=None)
    assert PROBE_TOKENS[1] > 16
    assert cost.inside_per_token > 0


@pytest.mark.parametrize(
    ("optimizer", "ranks", "copies"),
    [
        ("adamw_torch_fused", 1, 3),
        ("adamw_torch", 2, 4),
        ("paged_adamw_8bit", 1, 1.5),
        ("sgd", 1, 2),
        ("adafactor", 1, 1.1),
    ],
)
def test_gradients_and_states_are_counted_for_what_is_trained(optimizer, ranks, copies):
    model = wide_model(num_hidden_layers=1)
    trained = sum(each.numel() * 4 for each in model.parameters() if each.requires_grad)
    assert training_state_bytes(model, optimizer, ranks) == pytest.approx(trained * copies)


def test_ranks_of_a_machine_share_its_free_memory(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    alone = free_bytes(torch.device("cpu"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert free_bytes(torch.device("cpu")) == pytest.approx(alone / 4, rel=0.1)
    assert 0 < alone <= psutil.virtual_memory().total
