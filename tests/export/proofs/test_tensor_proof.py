"""The proofs find what is wrong; a proof that always says yes would pass no test here."""

from __future__ import annotations

import pytest
import torch
from export_helpers import save_adapter, tensors_of
from safetensors.torch import save_file

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.merge import merge_adapter
from hf_recipes.export.plan import plan_merge
from hf_recipes.export.proofs.logits import PROMPTS, compare_logits
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
    assert 0 <= proof["largest_error"] <= 1
    assert (proof["largest_error"] == 0) == (plan.outputs[0].spec.dtype == "F32")  # nothing is rounded there


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


@pytest.fixture
def chat(tmp_path, tiny_model_dir):
    """An adapter on a tiny chat model with a tokenizer."""
    return save_adapter(tmp_path / "adapter", tiny_model_dir, target_modules=["q_proj", "v_proj"])


@pytest.mark.slow
def test_logits_of_merged_and_adapter_agree(tmp_path, tiny_model_dir, chat):
    report = merge_adapter(chat, output=tmp_path / "out", dtype="fp32", proof="logits")
    logits = report.proof["logits"]
    assert logits["max_abs_difference"] < 1e-4
    assert logits["top1_agreement"] == 1.0
    assert logits["same_generations"] == logits["prompts"] == len(PROMPTS) == 4
    assert logits["positions"] > 100
    assert "fp32" in logits["meaning"]
    assert any("4 of 4 greedy answers the same" in line for line in report.lines())


@pytest.mark.slow
def test_another_model_does_not_pass_the_proof_by_logits(tmp_path, tiny_model_dir, chat):
    merge_adapter(chat, output=tmp_path / "out", dtype="fp32", proof="off")
    # A random tiny model is undecided about every word; larger embeddings, tied to the head, make it decided.
    spoil(tmp_path / "out", lambda state: state["model.embed_tokens.weight"].mul_(50))
    with pytest.raises(CheckFailed, match="not the adapter's"):
        compare_logits(chat, tiny_model_dir, tmp_path / "out")


def test_the_proof_by_logits_asks_for_a_tokenizer_first(tmp_path, adapter):
    with pytest.raises(UserError, match="holds a tokenizer, which the proof by logits needs"):
        merge_adapter(adapter, output=tmp_path / "out", dtype="fp32", proof="logits")
    assert not (tmp_path / "out").exists()


@pytest.mark.real_model
@pytest.mark.slow
def test_smollm2_merges_to_pefts_bits(tmp_path, smollm2_dir):
    from export_helpers import peft_merge

    adapter = save_adapter(tmp_path / "adapter", smollm2_dir, r=8, target_modules=["q_proj", "v_proj"])
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    golden = peft_merge(smollm2_dir, adapter)
    written = tensors_of(tmp_path / "out")
    assert report.tensors_total == len(written) == 272
    assert all(torch.equal(tensor, golden[name]) for name, tensor in written.items())
    assert report.tensors_changed == 60  # two projections of thirty layers
