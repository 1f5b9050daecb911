"""Changes of a job that need less memory, as pure functions of it."""

from __future__ import annotations

from dataclasses import replace

from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.settings import TrainingSettings

# What LoRA is put on by default.
_LORA_TARGETS = ("q_proj", "v_proj")


def with_lora(geometry: Geometry, r: int = 16) -> Geometry:
    """The geometry with everything frozen and LoRA on q_proj and v_proj, or on all of attention where nothing is called
    that. Adapters that are there already are dropped.

    Args:
        geometry: of the model.
        r: the adapters' rank.
    """
    base = [replace(tensor, trained=False) for tensor in geometry.tensors if tensor.part != "adapter"]
    attention = [tensor for tensor in base if tensor.part == "attention" and len(tensor.shape) == 2]
    named = [tensor for tensor in attention if any(f".{name}." in tensor.name for name in _LORA_TARGETS)]
    adapters = [pair for tensor in named or attention for pair in _pair(tensor, r)]
    return replace(geometry, tensors=(*base, *adapters))


def _pair(tensor: TensorShape, r: int) -> tuple[TensorShape, TensorShape]:
    out, into = tensor.shape
    stem = tensor.name.removesuffix(".weight")
    return (
        TensorShape(f"{stem}.lora_A.default.weight", (r, into), "adapter", tensor.layer),
        TensorShape(f"{stem}.lora_B.default.weight", (out, r), "adapter", tensor.layer),
    )


def lora_settings(settings: TrainingSettings) -> TrainingSettings:
    """The same job with LoRA on a frozen 16-bit base."""
    return replace(
        settings,
        method="lora",
        weights_dtype="bfloat16",
        trained_dtype="float32",
        autocast_dtype="bfloat16",
        quantization=None,
    )


def qlora_settings(settings: TrainingSettings) -> TrainingSettings:
    """The same job with LoRA on a base in NF4, double quantisation on."""
    return replace(lora_settings(settings), method="qlora", quantization="nf4", double_quantization=True)
