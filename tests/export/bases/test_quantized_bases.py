from __future__ import annotations

import pytest
import torch
from export_helpers import change_json, make_gpt2, save_base
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hf_recipes.core.errors import UserError
from hf_recipes.export.bases.base_values import with_base_values
from hf_recipes.export.bases.quantized_4bit import Quantized4bit
from hf_recipes.export.bases.quantized_8bit import Quantized8bit
from hf_recipes.export.bases.read import read_base

UP = "model.layers.0.mlp.up_proj"


def save_packed(directory, original, dtype=torch.bfloat16, **settings):
    config = BitsAndBytesConfig(**settings)
    model = AutoModelForCausalLM.from_pretrained(original, quantization_config=config, dtype=dtype)
    model.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return save_base(tmp_path_factory.mktemp("base") / "original", hidden_size=64, intermediate_size=128)


def change_weights(directory, change):
    file = directory / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("dtype", "kind", "double", "storage"),
    [
        (torch.bfloat16, "nf4", True, "uint8"),
        (torch.float16, "nf4", False, "uint8"),
        (torch.float32, "nf4", True, "float32"),
        (torch.bfloat16, "nf4", True, "bfloat16"),
        (torch.float32, "fp4", False, "uint8"),
        (torch.float16, "fp4", True, "float16"),
    ],
)
def test_m7_a_4_bit_base_has_the_values_of_dequantize(tmp_path, original, dtype, kind, double, storage):
    settings = {"bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": double, "bnb_4bit_quant_storage": storage}
    packed = save_packed(tmp_path / "packed", original, dtype, load_in_4bit=True, **settings)
    live = AutoModelForCausalLM.from_pretrained(packed).dequantize().state_dict()
    base = read_base(packed)
    assert set(base.tensors) == set(live)
    assert sum(isinstance(tensor, Quantized4bit) for tensor in base.tensors.values()) == 14
    for name, tensor in base.tensors.items():
        assert tensor.shape == live[name].shape
        assert torch.equal(tensor.load().to(dtype), live[name]), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_m7_an_8_bit_base_has_the_values_of_dequantize(tmp_path, original, dtype):
    packed = save_packed(tmp_path / "packed", original, dtype, load_in_8bit=True)
    live = AutoModelForCausalLM.from_pretrained(packed, dtype=dtype).dequantize().state_dict()
    base = read_base(packed)
    assert set(base.tensors) == set(live)
    assert sum(isinstance(tensor, Quantized8bit) for tensor in base.tensors.values()) == 14
    for name, tensor in base.tensors.items():
        assert tensor.shape == live[name].shape
        assert torch.equal(tensor.load().to(dtype), live[name]), name


@pytest.mark.parametrize("bits", ["load_in_4bit", "load_in_8bit"])
def test_packed_layers_that_keep_inputs_first_are_turned_back(tmp_path, bits):
    original = save_base(tmp_path / "gpt2", make_gpt2())
    base = read_base(save_packed(tmp_path / "packed", original, torch.float32, **{bits: True}))
    plain = read_base(original)
    for name, tensor in base.tensors.items():
        value, weight = tensor.load().float(), plain.tensors[name].load()
        assert value.shape == weight.shape == tensor.shape
        assert (value - weight).abs().max() <= 0.25 * weight.abs().max(), name  # a quarter: coarser than any step


def test_the_values_of_a_stored_quantised_base_are_the_only_ones(tmp_path, original, caplog):
    packed = read_base(save_packed(tmp_path / "packed", original, load_in_8bit=True))
    with caplog.at_level("INFO"):
        base, values = with_base_values(packed, "original", adapter_config={}, run={})
    assert base is packed and values == "dequantized"
    assert "stored in 8 bits: the dequantised values of 14 weights are used" in caplog.text
    with pytest.raises(UserError, match="its own scales are used"):
        with_base_values(packed, "dequantized", adapter_config={}, run={}, quantization="nf4,bf16")


def test_8_bit_scales_that_are_missing_or_of_another_layout_are_named(tmp_path, original):
    packed = save_packed(tmp_path / "packed", original, load_in_8bit=True)
    change_weights(packed, lambda tensors: tensors[f"{UP}.weight_format"].fill_(2))
    with pytest.raises(UserError, match=rf"'{UP}\.weight' of the base is in a layout of 8-bit weights for one kind"):
        read_base(packed)
    change_weights(packed, lambda tensors: tensors.pop(f"{UP}.SCB"))
    with pytest.raises(UserError, match=rf"'{UP}\.weight' of the base is 8-bit, but '{UP}\.SCB' does not scale it"):
        read_base(packed)


@pytest.mark.parametrize("bits", ["4", "8"])
def test_a_config_that_says_packed_over_plain_weights_is_refused(tmp_path, original, bits):
    base = save_base(tmp_path / "plain")
    quantisation = {"quant_method": "bitsandbytes", f"load_in_{bits}bit": True}
    change_json(base / "config.json", quantization_config=quantisation)
    with pytest.raises(UserError, match=f"says {bits}-bit, but none of its tensors is packed"):
        read_base(base)


METHODS = ["gptq", "awq", "fp8", "compressed-tensors", "mxfp4", "hqq", "torchao", "fbgemm_fp8", "bitnet"]


@pytest.mark.parametrize("method", METHODS)
def test_m6_other_quantised_bases_are_refused_by_their_config_alone(tmp_path, method):
    base = save_base(tmp_path / "base")
    change_json(base / "config.json", quantization_config={"quant_method": method})
    (base / "model.safetensors").write_bytes(b"not looked at")
    with pytest.raises(UserError, match=rf"{method.upper()}-quantised.*give the 16-bit model .* with --base"):
        read_base(base)


def test_m6_a_composite_config_keeps_its_quantisation_inside(tmp_path):
    base = save_base(tmp_path / "base")
    change_json(base / "config.json", text_config={"quantization_config": {"quant_method": "awq"}})
    with pytest.raises(UserError, match="AWQ-quantised"):
        read_base(base)


@pytest.mark.parametrize(
    ("card", "config", "adapter", "named"),
    [
        ("---\nlicense: mit\nbase_model: org/model\n---\n# Card\n", {}, [], "org/model"),
        ("---\nbase_model:\n- org/model\nbase_model_relation: quantized\n---\n", {}, [], "org/model"),
        (None, {"_name_or_path": "org/model"}, [], "org/model"),
        (None, {}, ["org/model"], "org/model"),
        ("# base_model: not/this\n", {}, ["HERE"], None),
        (None, {"_name_or_path": "HERE"}, [], None),
    ],
)
def test_m6_the_16_bit_model_is_named_where_something_names_it(tmp_path, card, config, adapter, named):
    base = save_base(tmp_path / "base")
    config = {key: value.replace("HERE", str(base)) for key, value in config.items()}
    change_json(base / "config.json", quantization_config={"quant_method": "gptq"}, **config)
    if card:
        (base / "README.md").write_text(card)
    original = rf"made from \('{named}', it seems\) with" if named else "made from with"
    with pytest.raises(UserError, match=original):
        read_base(base, [name.replace("HERE", str(base)) for name in adapter])
