"""The noise that stands for rounding: its size at each value, and which tensors it is added to."""

from __future__ import annotations

import pytest
import torch
from export_helpers import save_adapter, save_base

from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.plan import plan_merge
from hf_recipes.export.proofs.rounding import add_rounding_noise, half_unit, rounded_tensors

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.mark.parametrize("dtype", DTYPES)
def test_half_a_unit_is_half_the_way_to_the_next_value(dtype):
    generator = torch.Generator().manual_seed(0)
    values = torch.cat([torch.randn(1000, generator=generator), torch.tensor([1.0, 0.5, 1e-7, 0.0, 3.0])]).to(dtype)
    above = torch.nextafter(values.abs(), torch.tensor(torch.inf, dtype=dtype)).double()
    expected = ((above - values.abs().double()) / 2).float().double()  # half the smallest fp32 number is 0
    assert torch.equal(half_unit(values.float(), dtype).double(), expected)


@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_noise_is_rounded_away_again_and_fills_its_room(dtype):
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(dtype).float()
    noisy = {"w": values.clone()}
    add_rounding_noise(noisy, {"w": None}, dtype, seed=0)
    share = (noisy["w"] - values) / half_unit(values, dtype)
    assert share.abs().max() <= 1 and share.abs().mean() == pytest.approx(0.5, abs=0.02)
    inner = values.abs().frexp().mantissa > 0.5  # below a power of two values lie twice as close
    assert torch.equal(noisy["w"].to(dtype).float()[inner], values[inner])


def test_noise_in_fp32_changes_values():
    values = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    noisy = {"w": values.clone()}
    add_rounding_noise(noisy, {"w": None}, torch.float32, seed=0)
    assert 0.3 < (noisy["w"] != values).double().mean() < 0.7


def test_only_what_is_named_gets_noise_and_tied_tensors_once():
    tied = torch.ones(4, 4)
    tensors = {"a": tied, "b": tied, "c": torch.ones(4, 4), "d": torch.ones(4, 4)}
    once = {"a": torch.ones(4, 4)}
    add_rounding_noise(once, {"a": None}, torch.bfloat16, seed=0)
    add_rounding_noise(tensors, {"a": None, "b": None, "c": [2]}, torch.bfloat16, seed=0)
    assert torch.equal(tied, once["a"])
    assert (tensors["c"] != 1).any(dim=1).tolist() == [False, False, True, False]
    assert bool((tensors["d"] == 1).all())


@pytest.mark.parametrize(
    ("stored", "target", "others"),
    [(torch.bfloat16, "BF16", 0), (torch.bfloat16, "F32", 0), (torch.bfloat16, "F16", 0), (torch.float32, "BF16", 17)],
)
def test_what_a_merge_rounds(tmp_path, stored, target, others):
    base = save_base(tmp_path / "base", dtype=stored)
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["q_proj", "v_proj"])
    rounded = rounded_tensors(plan_merge(read_adapter(adapter), read_base(base), target))
    edited = {f"model.layers.{layer}.self_attn.{name}_proj.weight" for layer in (0, 1) for name in "qv"}
    assert edited <= set(rounded)
    assert len(rounded) == len(edited) + others


def test_of_trained_rows_only_the_rows(tmp_path):
    base = save_base(tmp_path / "base", dtype=torch.bfloat16, tied=True)
    adapter = save_adapter(
        tmp_path / "adapter", base, target_modules=["q_proj"], trainable_token_indices={"embed_tokens": [3, 5]}
    )
    rounded = rounded_tensors(plan_merge(read_adapter(adapter), read_base(base), "BF16"))
    assert rounded["model.embed_tokens.weight"] == [3, 5]
