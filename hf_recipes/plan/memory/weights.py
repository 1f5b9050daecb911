"""Bytes of the weights as they lie in memory."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from hf_recipes.core.dtypes import canonical_dtype_name
from hf_recipes.plan.geometry import TensorShape
from hf_recipes.plan.settings import TrainingSettings

WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}

# bitsandbytes: absolute maxima of blocks of 64 values; with double quantisation those are 8-bit numbers themselves, in
# blocks of 256 with a float32 maximum each, a table of 256 values and one offset (QLoRA, Dettmers et al. 2023, §3).
_BLOCK, _NESTED_BLOCK = 64, 256
_CODE_BYTES, _NESTED_CODE_BYTES, _OFFSET_BYTES = 16 * 4, 256 * 4, 4


def width_of(tensor: TensorShape, settings: TrainingSettings) -> int:
    """Bytes of one element of a tensor that is not quantised."""
    if tensor.trained:
        return dtype_width(settings.trained_dtype)
    if settings.kbit_preparation:
        return 4
    return dtype_width(settings.weights_dtype)


def dtype_width(name: str) -> int:
    """Bytes of one element.

    Raises:
        UserError: `name` is no dtype of weights.
    """
    return WIDTHS[canonical_dtype_name(name)]


def tensor_bytes(tensor: TensorShape, settings: TrainingSettings) -> float:
    """Bytes of one tensor, quantised if it is."""
    if not (tensor.linear and settings.quantization):
        return tensor.count * width_of(tensor, settings)
    if settings.quantization == "int8":
        return tensor.count + 4 * tensor.shape[0]  # a float32 scale a row (LLM.int8(), Dettmers et al. 2022)
    return four_bit_bytes(tensor.count, double_quantization=settings.double_quantization)


def four_bit_bytes(count: int, *, double_quantization: bool) -> float:
    """Bytes that bitsandbytes keeps `count` four-bit values in: packed pairs, scales and tables."""
    packed, blocks = ceil(count / 2), ceil(count / _BLOCK)
    if not double_quantization:
        return packed + 4 * blocks + _CODE_BYTES
    return packed + blocks + 4 * ceil(blocks / _NESTED_BLOCK) + _NESTED_CODE_BYTES + _CODE_BYTES + _OFFSET_BYTES


def weight_bytes(tensors: Iterable[TensorShape], settings: TrainingSettings) -> float:
    """Bytes of all of them."""
    return sum(tensor_bytes(tensor, settings) for tensor in tensors)
