"""Norms by layer add up to the whole, and the layer that stands out is found."""

from __future__ import annotations

import math

import pytest
import torch

from hf_recipes.callbacks.layer_norms import largest, layer_norms, layer_of


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.self_attn.q_proj.weight", "layers.3"),
        ("base_model.model.model.layers.11.mlp.up_proj.lora_A.default.weight", "layers.11"),
        ("transformer.h.0.attn.c_attn.bias", "h.0"),
        ("model.embed_tokens.weight", "embed_tokens"),
        ("lm_head.weight", "lm_head"),
        ("scale", "scale"),
    ],
)
def test_parameters_belong_to_their_block_or_module(name, layer):
    assert layer_of(name) == layer


def test_squares_of_the_layers_add_up_to_the_whole(tiny_model):
    ids = torch.arange(3, 19)[None]
    tiny_model(input_ids=ids, labels=ids).loss.backward()
    whole = torch.nn.utils.get_total_norm([each.grad for each in tiny_model.parameters()])
    norms = layer_norms(tiny_model)
    assert "layers.0" in norms
    assert math.sqrt(sum(norm**2 for norm in norms.values())) == pytest.approx(whole.item(), rel=1e-5)
    assert layer_norms(tiny_model, 2.0) == pytest.approx({name: 2 * norm for name, norm in norms.items()})


def test_without_gradients_there_are_no_layers(tiny_model):
    assert layer_norms(tiny_model) == {}


def test_the_layer_furthest_above_its_usual_norm_comes_first():
    norms, usual = {"small": 0.4, "large": 10.0}, {"small": 0.01, "large": 8.0}
    assert largest(norms, usual)[0] == ("small", 0.4, pytest.approx(40.0))
    assert [name for name, _, _ in largest(norms, {})] == ["large"]  # the small one has 0.2 % of the square
    assert [name for name, _, _ in largest({"small": 4.0, "large": 10.0}, {})] == ["large", "small"]
