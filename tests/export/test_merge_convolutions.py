"""Adapters on convolutions, of models that transformers has, against PEFT's merge in memory, to the bit."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from algebra_helpers import (
    edited_values,
    make_convnext,
    make_resnet,
    make_vivit,
    make_whisper,
    peft_state,
    save_random,
)
from export_helpers import change_json, change_tensors, save_base, tensors_of
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from transformers import ResNetModel

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.algebra import merge_scaling
from hf_recipes.export.merge import merge_adapter

FP32, BF16, FP16 = torch.float32, torch.bfloat16, torch.float16
# Model, method, settings, dtypes of the base.
CASES = {
    "1-d": (make_whisper, LoraConfig, {"target_modules": ["conv1", "conv2", "q_proj"], "r": 4}, [FP32]),
    "1-d, dora": (make_whisper, LoraConfig, {"target_modules": ["conv1", "conv2"], "use_dora": True}, [FP32, FP16]),
    "1-d, biases": (
        make_whisper,
        LoraConfig,
        {"target_modules": ["conv1"], "r": 2, "lora_bias": True, "bias": "lora_only"},
        [FP32, BF16],
    ),
    "2-d": (
        make_resnet,
        LoraConfig,
        {"target_modules": ["convolution"], "r": 4, "rank_pattern": {"shortcut.convolution": 2}},
        [FP32, BF16],
    ),
    "2-d, dora": (make_resnet, LoraConfig, {"target_modules": ["convolution"], "use_dora": True}, [FP32, BF16]),
    "3-d": (make_vivit, LoraConfig, {"target_modules": ["projection"], "r": 3, "use_rslora": True}, [FP32]),
    "3-d, dora": (make_vivit, LoraConfig, {"target_modules": ["projection"], "use_dora": True}, [FP32]),
    "2-d, outputs": (make_resnet, IA3Config, {"target_modules": ["convolution"], "feedforward_modules": []}, [FP16]),
    "2-d, inputs": (
        make_resnet,
        IA3Config,
        {"target_modules": ["convolution"], "feedforward_modules": ["convolution"]},
        [FP32, BF16],
    ),
    "3-d, outputs": (make_vivit, IA3Config, {"target_modules": ["projection"], "feedforward_modules": []}, [FP32]),
}


@pytest.fixture(scope="module")
def base_of(tmp_path_factory):
    """Where a model is saved, once for each dtype."""
    return cache(lambda make, dtype: save_base(tmp_path_factory.mktemp(make.__name__), make(), dtype=dtype))


@pytest.mark.parametrize(
    ("case", "dtype"), [(name, dtype) for name, (*_, dtypes) in CASES.items() for dtype in dtypes], ids=str
)
def test_convolutions_are_merged_to_pefts_bits(case, dtype, tmp_path, base_of):
    make, method, settings, _ = CASES[case]
    base = base_of(make, dtype)
    adapter = save_random(tmp_path / "adapter", make().to(dtype), method(**settings))
    golden = peft_state(make().to(dtype), adapter)
    before, values = tensors_of(base), edited_values(adapter, base, dtype)
    assert any(value.dim() > 2 for value in values.values())
    for name, value in values.items():
        assert torch.equal(value, golden[name]), name
        assert not torch.equal(value, before[name]) or not before[name].any(), name


@pytest.mark.parametrize("inputs", [True, False])
def test_a_vector_on_a_grouped_convolution(inputs, tmp_path):
    """PEFT has (IA)³ on `Conv2d` and `Conv3d`; of those with groups transformers has none that is small, so a layer."""
    layer = torch.nn.Conv2d(8, 12, 3, groups=4)
    config = IA3Config(target_modules=["0"], feedforward_modules=["0"] if inputs else [])
    wrapped = get_peft_model(torch.nn.Sequential(layer), config)
    vector = next(parameter for name, parameter in wrapped.named_parameters() if "ia3" in name)
    vector.data.normal_()
    before = layer.weight.detach().clone()
    wrapped.merge_adapter()
    merged = merge_scaling(before, vector.detach(), dimension=int(inputs), dtype=FP32)
    assert torch.equal(merged, layer.weight)
    assert not torch.equal(merged, before)


def test_a_merged_convolution_is_written_proven_and_computes_the_same(tmp_path, base_of):
    base = base_of(make_resnet, FP32)
    config = LoraConfig(target_modules=["convolution"], use_dora=True)
    adapter = save_random(tmp_path / "adapter", make_resnet(), config)
    change_json(adapter / "adapter_config.json", base_model_name_or_path=str(base))
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="fp32")
    assert report.tensors_changed == report.tensors_merged == 6
    pixels = torch.randn(1, 3, 32, 32)
    with torch.inference_mode():
        live = PeftModel.from_pretrained(make_resnet(), adapter).eval()(pixels).last_hidden_state
        merged = ResNetModel.from_pretrained(tmp_path / "out").eval()(pixels).last_hidden_state
        plain = make_resnet().eval()(pixels).last_hidden_state
    torch.testing.assert_close(merged, live, rtol=1e-4, atol=1e-5)
    assert (merged - plain).abs().max() > 1e-2


@pytest.mark.filterwarnings("ignore:LoRA adapter added to ConvNd")
def test_a_grouped_convolution_is_refused_since_its_weight_cannot_hold_the_update(tmp_path):
    """Why: A sees all inputs, B each group's ranks, so the update joins channels that the layer keeps apart."""
    adapter = save_random(tmp_path / "adapter", make_convnext(), LoraConfig(target_modules=["dwconv"], r=16))
    with pytest.raises(UserError, match=r"dwconv\.lora_A\.weight' is on a convolution of (8|16) groups"):
        read_adapter(adapter)
    with pytest.raises(NotImplementedError, match="groups > 1"):  # nor does PEFT
        peft_state(make_convnext(), adapter)


def test_a_kernel_of_another_size_belongs_to_another_base(tmp_path, base_of):
    base = base_of(make_whisper, FP32)
    adapter = save_random(tmp_path / "adapter", make_whisper(), LoraConfig(target_modules=["conv1"], r=2))
    name = "base_model.model.model.encoder.conv1.lora_A.weight"
    change_tensors(adapter, lambda tensors: tensors.update({name: torch.ones(2, 8, 5)}))
    with pytest.raises(UserError, match=r"conv1\.weight' of the base has shape \[16, 8, 3\], .* makes \[16, 8, 5\]"):
        edited_values(adapter, base, FP32)
