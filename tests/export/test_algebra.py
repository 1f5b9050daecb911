from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft.utils.other import get_pattern_key

from hf_recipes.export.algebra import (
    LoraUpdate,
    delta,
    merge_bias,
    merge_lora,
    merge_scaling,
    pattern_value,
    put_rows,
    scale_of,
)

SIZES = st.integers(1, 12)
DTYPES = st.sampled_from([torch.bfloat16, torch.float16, torch.float32])


@st.composite
def updates(draw, dora=False):
    outputs, inputs, rank, seed = draw(SIZES), draw(SIZES), draw(SIZES), draw(st.integers(0, 2**31))
    transposed = draw(st.booleans())
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(inputs if transposed else outputs, outputs if transposed else inputs, generator=random)
    magnitude = torch.rand(outputs, generator=random) + 0.5 if dora else None
    a, b = torch.randn(rank, inputs, generator=random), torch.randn(outputs, rank, generator=random)
    scale = draw(st.floats(-4, 4, allow_subnormal=False))
    return weight, LoraUpdate(a, b, scale, transposed, magnitude)


def exact(weight, update):
    """W + s·B·A in fp64, by an element-wise sum in place of a matrix product."""
    change = update.scale * torch.einsum("or,ri->oi", update.b.double(), update.a.double())
    return weight.double() + (change.T if update.transposed else change)


def within_one_rounding(value, expected):
    """Half a unit in the last place of the dtype, and what fp32 sums of at most 13 terms below 100 may lose."""
    info = torch.finfo(value.dtype)
    allowed = expected.abs() * info.eps / 2 + info.tiny + 1e-4
    return bool(((value.double() - expected).abs() <= allowed).all())


@given(updates(), DTYPES, DTYPES)
def test_a_merge_is_base_plus_update_rounded_once(case, base_dtype, dtype):
    weight, update = case
    weight = weight.to(base_dtype)
    before = weight.clone()
    merged = merge_lora(weight, update, dtype)
    assert merged.dtype == dtype
    assert torch.equal(weight, before)
    assert within_one_rounding(merged, exact(weight, update))
    # Rounded once: the 16-bit result is the fp32 result cast, never a cast of a rounded update.
    assert torch.equal(merged, merge_lora(weight, update, torch.float32).to(dtype))


@given(updates(dora=True))
def test_dora_gives_each_output_its_magnitude(case):
    weight, update = case
    merged = merge_lora(weight, update, torch.float32)
    direction = exact(weight, update)
    by_output = merged.T if update.transposed else merged
    torch.testing.assert_close(by_output.norm(dim=1), update.magnitude, rtol=1e-5, atol=1e-6)
    cosine = torch.nn.functional.cosine_similarity(
        by_output.double(), direction.T if update.transposed else direction, dim=1
    )
    torch.testing.assert_close(cosine, torch.ones_like(cosine), rtol=0, atol=1e-5)


@given(updates())
def test_merging_the_negative_undoes_a_merge(case):
    weight, update = case
    merged = merge_lora(weight, update, torch.float32)
    back = merge_lora(merged, LoraUpdate(update.a, update.b, -update.scale, update.transposed), torch.float32)
    torch.testing.assert_close(back, weight, rtol=0, atol=1e-3)


@given(updates())
def test_a_transposed_weight_gets_the_transposed_update(case):
    _weight, update = case
    flipped = LoraUpdate(update.a, update.b, update.scale, not update.transposed)
    assert torch.equal(delta(update), delta(flipped).T)


@given(updates(), st.sampled_from([0, 1]), DTYPES, DTYPES)
def test_a_vector_scales_along_its_dimension_and_is_rounded_once(case, dimension, base_dtype, dtype):
    weight = case[0].to(base_dtype)
    vector = torch.randn(weight.shape[dimension], 1)
    merged = merge_scaling(weight, vector, dimension, dtype)
    diagonal = torch.diag(vector.flatten().double())
    scaled = diagonal @ weight.double() if dimension == 0 else weight.double() @ diagonal
    assert merged.dtype == dtype
    assert torch.equal(merged, scaled.float().to(dtype))
    one = merge_scaling(weight[:, 0] if dimension == 0 else weight[0], vector, 0, dtype)
    assert torch.equal(one, merged[:, 0] if dimension == 0 else merged[0])


def test_scale_divides_by_rank_or_by_its_root():
    assert scale_of(32, 16, rank_stabilised=False) == 2.0
    assert scale_of(32, 16, rank_stabilised=True) == 8.0
    assert scale_of(8, 3, rank_stabilised=True) == 8 / math.sqrt(3)


@settings(max_examples=50)
@given(
    st.sampled_from(["model.layers.1.self_attn.q_proj", "model.layers.11.mlp.up_proj", "q_proj", "lm_head"]),
    st.dictionaries(
        st.sampled_from(["q_proj", r"layers\.1\..*", r"model.layers.1.*", "proj", "^lm_head", r".*1\.mlp\.up_proj"]),
        st.integers(1, 64),
    ),
)
def test_patterns_match_as_in_peft(module, patterns):
    assert pattern_value(patterns, module, 7) == patterns.get(get_pattern_key(list(patterns), module), 7)


def test_bias_and_rows():
    bias = merge_bias(torch.tensor([1.0, 2.0]), torch.tensor([0.5, -1.0]), 2.0, torch.bfloat16)
    assert bias.tolist() == [2.0, 0.0]
    weight = torch.zeros(4, 2)
    rows = put_rows(weight, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (3, 1), torch.float32)
    assert rows.tolist() == [[0, 0], [3, 4], [0, 0], [1, 2]]
    assert not weight.any()
