"""(IA)³ adapters: vectors multiplied into rows or columns, held against PEFT's merge in memory, to the bit."""

from __future__ import annotations

import pytest
import torch
from export_helpers import (
    change_json,
    change_tensors,
    live_logits,
    make_gpt2,
    merged_logits,
    peft_merge,
    read,
    save_base,
    save_ia3,
    tensors_of,
)
from safetensors.torch import save_file
from tiny_models import make_tiny_llama

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.merge import merge_adapter
from hf_recipes.export.plan import plan_merge
from hf_recipes.export.proofs.tensors import prove_tensors

SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
K = "base_model.model.model.layers.0.self_attn.k_proj.ia3_l"
DOWN = "base_model.model.model.layers.0.mlp.down_proj.ia3_l"
LLAMA_ADAPTERS = {
    "defaults": {},
    "all outputs": {"target_modules": LINEAR, "feedforward_modules": []},
    "all inputs": {"target_modules": LINEAR, "feedforward_modules": LINEAR},
    "patterns": {"target_modules": r".*layers\.1\..*_proj", "feedforward_modules": r".*(o|gate)_proj"},
    "head": {"target_modules": ["lm_head", "k_proj"], "feedforward_modules": []},
    "saved head": {"modules_to_save": ["lm_head"]},
}


def llama_with_biases():
    """A tiny Llama with biases that are not zero, in attention and MLP."""
    model = make_tiny_llama(64, tied=False, attention_bias=True, mlp_bias=True)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    return model


def assert_same(output, golden):
    written = tensors_of(output)
    for name, tensor in written.items():
        assert tensor.dtype == golden[name].dtype, name
        assert torch.equal(tensor, golden[name]), name
    missing = set(golden) - set(written)  # only tied names
    assert all(golden[name].data_ptr() in {golden[other].data_ptr() for other in written} for name in missing)


@pytest.mark.parametrize("dtype", SHORT, ids=SHORT.values())
@pytest.mark.parametrize("settings", LLAMA_ADAPTERS.values(), ids=LLAMA_ADAPTERS)
def test_llama_is_merged_to_pefts_bits_biases_included(settings, dtype, tmp_path):
    base = save_base(tmp_path / "base", llama_with_biases(), dtype=dtype)
    adapter = save_ia3(tmp_path / "adapter", base, **settings)
    report = merge_adapter(adapter, output=tmp_path / "out", dtype=SHORT[dtype])
    golden, before = peft_merge(base, adapter), tensors_of(base)
    assert_same(tmp_path / "out", golden)
    assert report.proof["tensors"]["largest_error"] <= 1.0
    changed = [name for name, tensor in before.items() if not torch.equal(golden[name], tensor)]
    assert report.tensors_changed == report.tensors_merged == len(changed)
    assert report.adapter_tensors_consumed == len(tensors_of(adapter))


@pytest.mark.parametrize("dtype", SHORT, ids=SHORT.values())
@pytest.mark.parametrize(
    "settings",
    [
        {},
        # c_attn is 32 × 96; attn.c_proj is square, so only the config tells its layout.
        {"target_modules": ["c_attn", "attn.c_proj", "c_fc"], "feedforward_modules": []},
        {"target_modules": ["c_attn", "attn.c_proj", "c_fc"], "feedforward_modules": ["c_attn", "attn.c_proj"]},
    ],
    ids=["defaults", "outputs", "inputs"],
)
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
def test_conv1d_is_merged_to_pefts_bits(settings, dtype, tmp_path):
    model = make_gpt2()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_()
    base = save_base(tmp_path / "base", model, dtype=dtype)
    adapter = save_ia3(tmp_path / "adapter", base, **settings)
    merge_adapter(adapter, output=tmp_path / "out", dtype=SHORT[dtype])
    assert_same(tmp_path / "out", peft_merge(base, adapter))


def test_a_16_bit_base_is_rounded_once_to_another_dtype(tmp_path):
    base = save_base(tmp_path / "base", llama_with_biases(), dtype=torch.bfloat16)
    adapter = save_ia3(tmp_path / "adapter", base)
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    vectors, before = tensors_of(adapter), tensors_of(base)
    written = tensors_of(tmp_path / "out")
    module = "model.layers.0.self_attn.k_proj"
    assert torch.equal(written[f"{module}.weight"], before[f"{module}.weight"].float() * vectors[K])
    assert torch.equal(written[f"{module}.bias"], before[f"{module}.bias"].float() * vectors[K].flatten())
    down = "model.layers.0.mlp.down_proj"
    assert torch.equal(written[f"{down}.weight"], before[f"{down}.weight"].float() * vectors[DOWN])
    assert torch.equal(written[f"{down}.bias"], before[f"{down}.bias"].float())  # inputs scaled: the bias stays


@pytest.mark.parametrize("tied", [True, False])
def test_m5_a_scaled_head_leaves_the_embedding_alone(tied, tmp_path):
    """PEFT's own merge would scale a tied embedding too; what counts is the live adapter."""
    base = save_base(tmp_path / "base", tied=tied)
    adapter = save_ia3(tmp_path / "adapter", base, target_modules=["lm_head", "k_proj"], feedforward_modules=[])
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    torch.testing.assert_close(merged_logits(tmp_path / "out"), live_logits(base, adapter), rtol=0, atol=2e-5)
    assert report.untied == tied
    assert read(tmp_path / "out" / "config.json")["tie_word_embeddings"] is False


@pytest.fixture
def ia3(tmp_path, base):
    return save_ia3(tmp_path / "ia3", base)


def refused(adapter, output, match):
    with pytest.raises(UserError, match=match) as error:
        merge_adapter(adapter, output=output, dtype="fp32")
    assert "\n" not in str(error.value)
    assert not output.exists()


def test_m2_a_vector_without_a_place_in_the_base_is_named(tmp_path, ia3):
    change_tensors(ia3, lambda tensors: tensors.update({K.replace("layers.0", "layers.7"): tensors.pop(K)}))
    refused(ia3, tmp_path / "out", r"1 of 6 adapter tensors have no counterpart .*layers\.7\.self_attn\.k_proj\.ia3_l")


@pytest.mark.parametrize(
    "name", [K.replace("ia3_l", "ia3_x"), K.replace("ia3_l", "lora_A.weight"), K.replace("ia3_l", "ia3_l.weight")]
)
def test_m2_a_tensor_of_unknown_kind_is_named(name, tmp_path, ia3):
    change_tensors(ia3, lambda tensors: tensors.update({name: torch.ones(2, 2)}))
    refused(ia3, tmp_path / "out", r"k_proj\..*' is of a kind that is not known")


def test_m2_a_vector_in_a_lora_adapter_is_named(tmp_path, adapter):
    change_tensors(adapter, lambda tensors: tensors.update({K: torch.ones(16, 1)}))
    refused(adapter, tmp_path / "out", r"k_proj\.ia3_l' is of a kind that is not known")


def test_m2_vectors_of_ones_fail_the_check(tmp_path, ia3):
    change_tensors(ia3, lambda tensors: [tensor.fill_(1.0) for tensor in tensors.values()])
    with pytest.raises(CheckFailed, match="changes nothing: all its vectors are one"):
        merge_adapter(ia3, output=tmp_path / "out", dtype="fp32")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_m8_a_vector_that_is_not_finite_is_named(value, tmp_path, ia3):
    change_tensors(ia3, lambda tensors: tensors[DOWN].view(-1)[3:4].fill_(value))
    refused(ia3, tmp_path / "out", r"down_proj\.ia3_l' holds NaN or Inf: training diverged")


def test_a_vector_of_another_width_belongs_to_another_base(tmp_path, ia3):
    change_tensors(ia3, lambda tensors: tensors.update({K: torch.ones(24, 1)}))
    refused(ia3, tmp_path / "out", r"'model\.layers\.0\.self_attn\.k_proj\.weight' .*\[16, 32\].* scales 24 outputs")


def test_a_config_of_another_adapter_is_found_by_the_vectors_layout(tmp_path, ia3):
    change_json(ia3 / "adapter_config.json", feedforward_modules=["k_proj", "down_proj"])
    refused(ia3, tmp_path / "out", r"scales the inputs of its layer: the two files do not belong together")


def test_a_vector_of_a_convolution_fits_no_linear_layer(tmp_path, ia3):
    change_tensors(ia3, lambda tensors: tensors.update({K: torch.ones(1, 16, 1, 1)}))
    refused(ia3, tmp_path / "out", r"k_proj\.weight' of the base has shape \[16, 32\], which .* do not fit")


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("name", ["self_attn.k_proj.weight", "self_attn.k_proj.bias", "mlp.down_proj.weight"])
def test_the_proof_finds_a_value_two_roundings_off(name, dtype, tmp_path):
    base = save_base(tmp_path / "base", llama_with_biases())
    adapter = save_ia3(tmp_path / "adapter", base)
    merge_adapter(adapter, output=tmp_path / "out", dtype=dtype, proof="off")
    plan = plan_merge(read_adapter(adapter), read_base(base), {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}[dtype])
    assert prove_tensors(plan, tmp_path / "out")["largest_error"] <= 1
    state = tensors_of(tmp_path / "out")
    changed = f"model.layers.1.{name}"
    integers = state[changed].view(torch.int32 if dtype == "fp32" else torch.int16)
    integers.view(-1)[7] += 2 if dtype != "fp32" else 4
    save_file(state, tmp_path / "out" / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckFailed, match=changed):
        prove_tensors(plan, tmp_path / "out")
