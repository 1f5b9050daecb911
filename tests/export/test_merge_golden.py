"""The merged tensors against PEFT's merge in memory, to the bit. (Where PEFT is wrong: `test_merge_tied.py`.)"""

from __future__ import annotations

import pytest
import torch
from export_helpers import make_gpt2, peft_merge, save_adapter, save_base, tensors_of
from safetensors.torch import load_file, save_file

from hf_recipes.export.merge import merge_adapter

LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
LLAMA_ADAPTERS = {
    "two layers": {"target_modules": ["q_proj", "v_proj"]},
    "all linear layers": {"target_modules": LINEAR},
    "rank-stabilised": {"target_modules": ["q_proj", "v_proj"], "use_rslora": True, "r": 3},
    "dora": {"use_dora": True, "target_modules": LINEAR},
    "patterns": {
        "target_modules": ["q_proj", "v_proj"],
        "rank_pattern": {"q_proj": 2, r"layers\.1.*v_proj": 6},
        "alpha_pattern": {"v_proj": 3},
    },
    "head": {"target_modules": ["lm_head", "q_proj"]},
    "saved head": {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]},
    "saved embedding and head": {
        "target_modules": ["q_proj", "v_proj"],
        "modules_to_save": ["lm_head", "embed_tokens"],
    },
    "bias of lora": {"target_modules": ["q_proj", "v_proj"], "lora_bias": True},
    "all biases": {"target_modules": ["q_proj", "v_proj"], "bias": "all"},
    "biases of lora layers": {"target_modules": ["q_proj", "v_proj"], "bias": "lora_only"},
    "token rows": {"target_modules": ["q_proj", "v_proj"], "trainable_token_indices": {"embed_tokens": [3, 17]}},
}


def assert_same(output, golden):
    written = tensors_of(output)
    for name, tensor in written.items():
        assert tensor.dtype == golden[name].dtype, name
        assert torch.equal(tensor, golden[name]), name
    # Only tied names may be missing from the file.
    missing = set(golden) - set(written)
    assert all(golden[name].data_ptr() in {golden[other].data_ptr() for other in written} for name in missing)


@pytest.mark.parametrize("dtype", SHORT, ids=SHORT.values())
@pytest.mark.parametrize("settings", LLAMA_ADAPTERS.values(), ids=LLAMA_ADAPTERS)
def test_llama_is_merged_to_pefts_bits(settings, dtype, tmp_path):
    base = save_base(tmp_path / "base", dtype=dtype, attention_bias=True)
    adapter = save_adapter(tmp_path / "adapter", base, **settings)
    report = merge_adapter(adapter, output=tmp_path / "out", dtype=SHORT[dtype])
    assert_same(tmp_path / "out", peft_merge(base, adapter))
    assert report.proof["tensors"]["largest_error"] <= 1.0
    assert report.tensors_changed == report.tensors_merged > 0


@pytest.mark.parametrize("dtype", SHORT, ids=SHORT.values())
@pytest.mark.parametrize("settings", [{}, {"use_dora": True}, {"lora_bias": True}, {"bias": "all"}], ids=str)
def test_conv1d_is_merged_to_pefts_bits(settings, dtype, tmp_path):
    base = save_base(tmp_path / "base", make_gpt2(), dtype=dtype)
    layers = {"target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}
    adapter = save_adapter(tmp_path / "adapter", base, **layers, **settings)
    merge_adapter(adapter, output=tmp_path / "out", dtype=SHORT[dtype])
    assert_same(tmp_path / "out", peft_merge(base, adapter))


@pytest.mark.parametrize("settings", [{}, {"use_dora": True}], ids=str)
def test_an_untied_embedding_in_fp32_is_merged_to_pefts_bits(settings, tmp_path):
    base = save_base(tmp_path / "base")
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["embed_tokens", "q_proj"], **settings)
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    assert_same(tmp_path / "out", peft_merge(base, adapter))


def test_an_embedding_in_bf16_is_rounded_once_where_peft_rounds_twice(tmp_path):
    base = save_base(tmp_path / "base", dtype=torch.bfloat16)
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["embed_tokens"])
    merge_adapter(adapter, output=tmp_path / "out", dtype="bf16")
    name = "model.embed_tokens.weight"
    parts = tensors_of(adapter)
    a, b = (parts[f"base_model.model.model.embed_tokens.lora_embedding_{half}"] for half in "AB")
    exact = tensors_of(base)[name].float() + (b @ a).T * 2  # alpha 8 / rank 4
    assert torch.equal(tensors_of(tmp_path / "out")[name], exact.bfloat16())
    peft = peft_merge(base, adapter)[name].float()
    assert (peft - exact).abs().max() >= (tensors_of(tmp_path / "out")[name].float() - exact).abs().max()


def test_gpt2_saved_without_its_head_keeps_its_names(tmp_path):
    """As the original GPT-2 checkpoint: names lack the first part, ``transformer.``."""
    base = save_base(tmp_path / "base", make_gpt2())
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["c_attn"], fan_in_fan_out=True)
    golden = peft_merge(base, adapter)
    state = {
        name.removeprefix("transformer."): tensor for name, tensor in load_file(base / "model.safetensors").items()
    }
    save_file(state, base / "model.safetensors", metadata={"format": "pt"})
    merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    written = tensors_of(tmp_path / "out")
    assert set(written) == set(state)
    assert all(torch.equal(tensor, golden[f"transformer.{name}"]) for name, tensor in written.items())
