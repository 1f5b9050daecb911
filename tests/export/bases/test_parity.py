from __future__ import annotations

import pytest
import torch
from export_helpers import save_base

from hf_recipes.export.bases.parity import quantization_error, update_norm
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.bases.trained_quantization import TrainedQuantization
from hf_recipes.export.bases.trained_values import with_trained_values

Q = "model.layers.0.self_attn.q_proj.weight"
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    original = read_base(save_base(tmp_path_factory.mktemp("base") / "original"))
    return with_trained_values(original, TrainedQuantization("nf4", "float32"), "CAUSAL_LM")


def test_the_norm_of_an_update_needs_no_product():
    torch.manual_seed(0)
    a, b = torch.randn(4, 30), torch.randn(20, 4)
    assert update_norm(a, b, -0.5) == pytest.approx(float((0.5 * b @ a).norm()), rel=1e-6)
    assert update_norm(a, torch.zeros(20, 4), 2.0) == 0.0


def test_quantisation_is_measured_in_updates(base):
    tensor = base.tensors[Q]
    moved = float((tensor.load() - tensor.original.load()).norm())
    assert 0.05 < moved / float(tensor.original.load().norm()) < 0.15  # NF4 of normal weights: about 9 %
    result = quantization_error(base.tensors, {Q: moved / 4, UP: 1e9, "model.embed_tokens.weight": 1.0})
    assert result.ratios[Q] == pytest.approx(4.0)
    assert list(result.ratios) == [Q, UP]
    assert "median 2, largest 4 (model.layers.0.self_attn.q_proj.weight), of 2 weights" in result.line()


def test_an_update_of_zero_and_no_update_are_told_apart(base):
    assert quantization_error(base.tensors, {Q: 0.0}).ratios[Q] == float("inf")
    assert quantization_error(base.tensors, {}).line() == "quantisation error: no trained weight was quantised"
