"""bitsandbytes' 4-bit weights, rightly read on every CPU.

The scales of 4-bit weights belong to blocks of 64 values, one after the other through the whole matrix. The kernel that
bitsandbytes (0.50) has for CPUs with AVX-512 takes each row to begin a block, which is so only where rows are multiples
of 64: all others it reads with scales of other blocks, and nothing tells.
"""

from __future__ import annotations

from collections import Counter
from copy import copy
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_PROBED_ROWS = 8


def dequantized(packed: Tensor, state: Any) -> Tensor:
    """The values of a packed matrix, by bitsandbytes' own kernel, a block a row.

    Args:
        packed: uint8 (bytes, 1), two values a byte.
        state: its ``QuantState``; the result has its shape and dtype.
    """
    import torch
    from bitsandbytes.functional import dequantize_4bit

    count = prod(state.shape)
    by_block = copy(state)
    whole = count % state.blocksize == 0
    by_block.shape = torch.Size((count // state.blocksize, state.blocksize) if whole else (1, count))
    return dequantize_4bit(packed, by_block).reshape(state.shape)


def misread_layers(model: Any) -> Counter[int]:
    """How many 4-bit layers of a model on this CPU are computed with wrong values, by the length of their rows."""
    layers = [module for module in model.modules() if hasattr(getattr(module, "weight", None), "quant_type")]
    lengths = Counter(
        layer.in_features
        for layer in layers
        if layer.weight.device.type == "cpu" and layer.in_features % layer.weight.blocksize
    )
    return Counter({length: count for length, count in lengths.items() if _is_misread(length)})


def told_misread(model: Any) -> str | None:
    """What is wrong with the 4-bit layers of a model here, as the beginning of a sentence; None where nothing is."""
    misread = misread_layers(model)
    if not misread:
        return None
    lengths = ", ".join(map(str, sorted(misread)))
    return (
        f"bitsandbytes computes {sum(misread.values())} layers of this model wrongly in 4 bits on this CPU (under "
        f"AVX-512 rows must be multiples of 64 values, theirs have {lengths})"
    )


def read_rightly(model: Any, dtype: Any) -> str | None:
    """Put plain layers of the values that were stored in the place of all that are computed wrongly here.

    Args:
        model: in evaluation; it takes 2 or 4 bytes a weight for these layers then instead of half a byte.
        dtype: torch's, of the layers.

    Returns:
        What was wrong, as `told_misread` says it; None where nothing was.
    """
    import torch

    told = told_misread(model)
    if told is None:
        return None
    wrong = misread_layers(model)
    for name, layer in list(model.named_modules()):
        weight: Any = getattr(layer, "weight", None)
        if not hasattr(weight, "quant_type") or layer.in_features not in wrong:
            continue
        plain = torch.nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, dtype=dtype)
        plain.weight.data = dequantized(weight.data, weight.quant_state).to(dtype)
        if layer.bias is not None:
            plain.bias.data = layer.bias.data.to(dtype)
        model.set_submodule(name, plain.requires_grad_(False).train(layer.training))
    return told


def _is_misread(length: int) -> bool:
    """Whether bitsandbytes reads rows of `length` otherwise than block by block."""
    import torch
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    weight = torch.linspace(-1, 1, _PROBED_ROWS * length).reshape(_PROBED_ROWS, length)
    packed, state = quantize_4bit(weight, quant_type="nf4")
    return not torch.equal(dequantize_4bit(packed, state), dequantized(packed, state))
