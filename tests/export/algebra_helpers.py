"""The planned values of a merge, computed without writing files, and held against the proof's other route."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import PeftModel, get_peft_model

from hf_recipes.core.tensors import torch_dtype
from hf_recipes.export.adapter import Adapter, read_adapter
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.plan import MergePlan, plan_merge
from hf_recipes.export.values import expected_value, merged_value

SAFETENSORS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def make_whisper():
    """A random Whisper: two `Conv1d` layers of kernel 3, with biases."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    torch.manual_seed(0)
    layers = {f"{side}_{what}": size for side in ("encoder", "decoder") for what, size in _LAYERS.items()}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"vocab_size": 64, "d_model": 16, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 16}
    return WhisperForConditionalGeneration(WhisperConfig(**layers, **tokens, **sizes))


_LAYERS = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}


def make_resnet():
    """A random ResNet: `Conv2d` layers of kernels 7, 3 and 1, without biases."""
    from transformers import ResNetConfig, ResNetModel

    torch.manual_seed(0)
    return ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"))


def make_vivit():
    """A random ViViT: one `Conv3d` layer of kernel 2 × 4 × 4, with a bias."""
    from transformers import VivitConfig, VivitModel

    torch.manual_seed(0)
    sizes = {"image_size": 8, "tubelet_size": [2, 4, 4], "num_frames": 4, "hidden_size": 16, "intermediate_size": 16}
    return VivitModel(VivitConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))


def make_convnext():
    """A random ConvNeXt: `Conv2d` layers with a group for each channel."""
    from transformers import ConvNextConfig, ConvNextModel

    torch.manual_seed(0)
    return ConvNextModel(ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2))


def save_random(directory: Path, model, config, *, seed: int = 1, spread: float = 0.05) -> Path:
    """Put an adapter of any method on `model`, make every trained value random, save it as training would."""
    torch.manual_seed(seed)
    wrapped = get_peft_model(model, config)
    with torch.no_grad():
        for parameter in wrapped.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * spread)
    wrapped.save_pretrained(directory)
    return directory


def peft_state(model, adapter: Path) -> dict[str, torch.Tensor]:
    """PEFT's own merge of `adapter` into `model`, in memory."""
    return PeftModel.from_pretrained(model, adapter).merge_and_unload().state_dict()


def plan_of(adapter: Adapter | Path, base: Path, dtype: torch.dtype) -> MergePlan:
    read = adapter if isinstance(adapter, Adapter) else read_adapter(adapter)
    return plan_merge(read, read_base(base), SAFETENSORS[dtype])


def values_of(plan: MergePlan) -> dict[str, torch.Tensor]:
    """Every value the plan would write. Each edited one must be within one rounding of the proof's own route."""
    values = {}
    for output in plan.outputs:
        value = merged_value(output, output.source.load(), torch_dtype(output.spec.dtype))
        if output.edit:
            expected, room = expected_value(output, output.start.load())
            limits = torch.finfo(value.dtype)
            allowed = expected.abs() * limits.eps / 2 + limits.smallest_normal * limits.eps + room
            assert bool(((value.double() - expected).abs() <= allowed).all()), output.spec.name
        values[output.spec.name] = value
    return values


def edited_values(adapter: Adapter | Path, base: Path, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Only the values the adapter bears on."""
    plan = plan_of(adapter, base, dtype)
    values = values_of(plan)
    return {output.spec.name: values[output.spec.name] for output in plan.edited}
