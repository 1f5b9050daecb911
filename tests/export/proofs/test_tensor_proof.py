"""The proofs find what is wrong; a proof that always says yes would pass no test here."""

from __future__ import annotations

import shutil

import pytest
import torch
from export_helpers import save_adapter, save_base, tensors_of
from safetensors.torch import load_file, save_file

from hf_recipes.core.errors import CheckFailed
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.merge import merge_adapter
from hf_recipes.export.plan import plan_merge
from hf_recipes.export.proofs.tensors import prove_tensors

MERGED = "model.layers.0.self_attn.q_proj.weight"
COPIED = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(params=["bf16", "fp16", "fp32"])
def merged(request, tmp_path, base, adapter):
    """A plan and the directory it was written to."""
    name = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}[request.param]
    merge_adapter(adapter, output=tmp_path / "out", dtype=request.param, proof="off")
    return plan_merge(read_adapter(adapter), read_base(base), name), tmp_path / "out"


def spoil(directory, change):
    state = tensors_of(directory)
    change(state)
    save_file(state, directory / "model.safetensors", metadata={"format": "pt"})


def next_value(tensor, steps):
    """One value moved by `steps` units in the last place."""
    integers = tensor.view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)
    integers.view(-1)[7] += steps


def test_a_good_merge_is_proven(merged):
    plan, directory = merged
    proof = prove_tensors(plan, directory)
    # alpha / rank is 2 here: both routes round alike.
    assert (proof["copied"], proof["recomputed"], proof["largest_error"]) == (
        sum(output.is_copy for output in plan.outputs),
        4,
        0,
    )


def test_two_routes_that_round_differently_are_told_apart_from_a_fault(tmp_path, base):
    """alpha / rank = 5/3 is no power of two: a fused product rounds once less, here and there to another fp32 value."""
    adapter = save_adapter(tmp_path / "adapter", base, r=3, lora_alpha=5, target_modules="all-linear")
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    assert 0 < report.proof["tensors"]["largest_error"] <= 1


@pytest.mark.parametrize("name", [MERGED, COPIED])
def test_a_value_two_roundings_off_is_found(merged, name):
    plan, directory = merged
    # In fp32 the sums' own error is allowed for, some steps; elsewhere two steps are too many.
    steps = 2 if plan.outputs[0].spec.dtype != "F32" else 4096
    spoil(directory, lambda state: next_value(state[name], steps))
    with pytest.raises(CheckFailed, match=name):
        prove_tensors(plan, directory)


def test_nan_is_found(merged):
    plan, directory = merged
    spoil(directory, lambda state: state[MERGED].view(-1)[0:1].fill_(float("nan")))
    with pytest.raises(CheckFailed, match="NaN or Inf"):
        prove_tensors(plan, directory)


def test_a_missing_and_a_retyped_tensor_are_found(merged):
    plan, directory = merged
    good = tensors_of(directory)
    spoil(directory, lambda state: state.pop(COPIED))
    with pytest.raises(CheckFailed, match="other tensors than planned"):
        prove_tensors(plan, directory)
    save_file({**good, COPIED: good[COPIED].double()}, directory / "model.safetensors")
    with pytest.raises(CheckFailed, match="was written as F64"):
        prove_tensors(plan, directory)


def test_a_cut_file_is_found(merged):
    plan, directory = merged
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(CheckFailed, match="cannot be read again"):
        prove_tensors(plan, directory)


def test_a_weak_adapter_is_told_how_much_of_it_rounding_leaves(tmp_path, caplog):
    base = save_base(tmp_path / "base16", dtype=torch.bfloat16)
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["q_proj", "v_proj"])

    def merge(adapter, dtype):
        return merge_adapter(adapter, output=tmp_path / f"{adapter.name}-{dtype}", dtype=dtype)

    strong = merge(adapter, "bf16")
    assert strong.proof["tensors"]["update_kept"] > 0.99 and not any("keeps" in told for told in strong.notices)
    weak = tmp_path / "weak"
    shutil.copytree(adapter, weak)
    state = load_file(weak / "adapter_model.safetensors")
    save_file(
        {name: value / 1000 if "lora_B" in name else value for name, value in state.items()},
        weak / "adapter_model.safetensors",
        metadata={"format": "pt"},
    )
    report = merge(weak, "bf16")
    original, rounded = load_file(base / "model.safetensors"), load_file(report.output / "model.safetensors")
    wide = load_file(merge(weak, "fp32").output / "model.safetensors")
    along = squared = 0.0
    for name, exact in wide.items():
        update = (exact - original[name].float()).double()
        along += float(((rounded[name].float() - original[name].float()).double() * update).sum())
        squared += float(update.square().sum())
    assert report.proof["tensors"]["update_kept"] == pytest.approx(along / squared, rel=1e-3) and along < 0.95 * squared
    assert f"Rounding to bf16 keeps {along / squared:.0%} of the update" in caplog.text
    assert any("merge to fp16" in told for told in report.notices)
