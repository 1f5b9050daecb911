from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.checkpoints.verification.magnitude import abs_max, can_judge
from hf_recipes.core.tensors import BITS_PER_ELEMENT, torch_dtype

FLOATS = ["F8_E4M3", "F8_E5M2", "F16", "BF16", "F32", "F64"]
JUDGED = sorted(dtype for dtype in BITS_PER_ELEMENT if can_judge(dtype))


def torch_abs_max(content: bytes, dtype: str) -> float:
    tensor = torch.frombuffer(bytearray(content), dtype=torch_dtype(dtype))
    if dtype == "C64":  # each part for itself
        tensor = torch.view_as_real(tensor)
    return float(tensor.to(torch.float64).abs().max())


def test_only_floats_of_less_than_a_byte_are_not_judged():
    assert sorted(set(BITS_PER_ELEMENT) - set(JUDGED)) == ["F4", "F6_E2M3", "F6_E3M2"]


@settings(max_examples=300, deadline=None)
@given(dtype=st.sampled_from(JUDGED), content=st.binary(min_size=8, max_size=64))
def test_it_is_torchs_abs_max_for_any_bytes_of_any_dtype(dtype, content):
    if dtype == "BOOL":
        content = bytes(byte & 1 for byte in content)
    content = content[: len(content) // 8 * 8]
    expected, got = torch_abs_max(content, dtype), abs_max(memoryview(content), dtype)
    assert got == expected or (math.isnan(got) and math.isnan(expected))


@pytest.mark.parametrize(("dtype", "nan"), [("F8_E4M3FNUZ", 0x80), ("F8_E5M2FNUZ", 0x80), ("F8_E8M0", 0xFF)])
def test_c3_the_one_nan_of_dtypes_that_have_no_sign_of_zero_is_nan(dtype, nan):
    assert math.isnan(abs_max(memoryview(bytes([1, nan, 2])), dtype))
    assert math.isfinite(abs_max(memoryview(bytes(set(range(256)) - {nan})), dtype))


@pytest.mark.parametrize("dtype", FLOATS)
def test_c3_every_kind_of_nan_is_nan(dtype):
    width = BITS_PER_ELEMENT[dtype] // 8
    for sign in (0x7F, 0xFF):
        content = bytearray(8 * width)
        content[3 * width : 4 * width] = bytes([0xFF] * (width - 1) + [sign])
        assert math.isnan(abs_max(memoryview(content), dtype))
