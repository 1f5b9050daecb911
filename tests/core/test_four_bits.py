from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.four_bits import dequantized, misread_layers, read_rightly

BLOCK = 64


def by_hand(packed, state):
    """Each value is its code's, times the largest absolute value of its block of 64 in the flattened matrix."""
    codes = torch.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], 1).reshape(-1).long()
    scales = state.absmax.repeat_interleave(BLOCK)[: len(codes)]
    return (state.code[codes] * scales)[: state.shape.numel()].reshape(state.shape).to(state.dtype)


@given(
    rows=st.integers(1, 40),
    length=st.integers(1, 100).map(lambda half: 2 * half),
    kind=st.sampled_from(["nf4", "fp4"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
def test_every_value_is_read_with_the_scale_of_its_own_block(rows, length, kind, dtype):
    from bitsandbytes.functional import quantize_4bit

    weight = torch.randn(rows, length, generator=torch.Generator().manual_seed(rows * length)).to(dtype)
    packed, state = quantize_4bit(weight, quant_type=kind)
    values = dequantized(packed, state)
    assert (values.shape, values.dtype) == (weight.shape, dtype)
    torch.testing.assert_close(values, by_hand(packed, state), rtol=0, atol=0)


def test_doubly_quantised_scales_are_read_too():
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    weight = torch.randn(32, 2 * BLOCK)
    packed, state = quantize_4bit(weight, quant_type="nf4", compress_statistics=True)
    assert torch.equal(dequantized(packed, state), dequantize_4bit(packed, state))


@pytest.mark.parametrize("length", [32, 64, 96, 192])
def test_layers_whose_product_is_wrong_here_are_found(length):
    from bitsandbytes.nn import Linear4bit

    layer = Linear4bit(length, 16, bias=False, compute_dtype=torch.float32, quant_type="nf4").to("cpu")
    layer.requires_grad_(False)
    inputs = torch.eye(length, requires_grad=True)  # the way of a training: the product gives the matrix itself
    right = dequantized(layer.weight.data, layer.weight.quant_state)
    is_wrong = not torch.allclose(layer(inputs).T, right)
    assert misread_layers(torch.nn.Sequential(layer, torch.nn.Linear(length, 4))) == Counter(
        {length: 1} if is_wrong else {}
    )
    assert not (is_wrong and length % BLOCK == 0)


@pytest.mark.parametrize("length", [32, 64, 96])
@pytest.mark.parametrize("bias", [True, False])
def test_a_model_read_rightly_computes_with_the_stored_values(length, bias, monkeypatch):
    from bitsandbytes.nn import Linear4bit

    monkeypatch.setattr("hf_recipes.core.four_bits._is_misread", lambda length: length % BLOCK != 0)  # on every CPU
    layer = Linear4bit(length, 16, bias=bias, compute_dtype=torch.float32, quant_type="nf4").to("cpu")
    stored = dequantized(layer.weight.data, layer.weight.quant_state)
    model = torch.nn.Sequential(torch.nn.Sequential(layer), torch.nn.Linear(16, 4)).eval()
    told = read_rightly(model, torch.float32)
    read = model[0][0]
    assert (told is None, type(read)) == ((True, Linear4bit) if length % BLOCK == 0 else (False, torch.nn.Linear))
    assert not read.training
    if told:
        assert torch.equal(read.weight, stored) and not read.weight.requires_grad
        assert torch.equal(read.bias, layer.bias) if bias else read.bias is None
