"""Weights that are not finite, by name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from hf_recipes.callbacks.finite_weights import weights_not_finite


def model(dtype=torch.float32):
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).to(dtype)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_every_kind_in_every_dtype_is_named(value, dtype):
    network = model(dtype)
    assert weights_not_finite(network) == []
    with torch.no_grad():
        network[1].weight[1, 3] = value
    assert weights_not_finite(network) == ["1.weight"]


def test_large_weights_are_finite():
    network = model()
    nn.init.constant_(network[0].weight, torch.finfo(torch.float32).max)
    assert weights_not_finite(network) == []


def test_frozen_weights_count_only_where_asked_for():
    network = model()
    network[0].weight.requires_grad_(False).fill_(math.nan)
    assert weights_not_finite(network, trainable_only=True) == []
    assert weights_not_finite(network) == ["0.weight"]


def test_packed_empty_and_absent_weights_are_passed_over_and_a_zero3_shard_is_looked_at():
    network = nn.Module()
    network.packed = nn.Parameter(torch.zeros(4, dtype=torch.uint8), requires_grad=False)
    network.nowhere = nn.Parameter(torch.empty(4, device="meta"))
    network.elsewhere = nn.Parameter(torch.empty(0))
    assert weights_not_finite(network) == []
    network.elsewhere.ds_tensor = torch.tensor([1.0, math.nan])
    assert weights_not_finite(network) == ["elsewhere"]
