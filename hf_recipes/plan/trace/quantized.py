"""Four-bit layers without weights: bitsandbytes' own modules and products, with packed tensors without content."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn

BLOCK = 64  # weights under one scale
NESTED_BLOCK = 256  # scales under one scale of double quantisation


def pack_linears(model: nn.Module, names: Collection[str], compute_dtype: torch.dtype, *, double: bool) -> None:
    """Put bitsandbytes' `Linear4bit` in place of linear layers, with weights as the real ones would be packed.

    (The real packing runs through code that wants addresses.)

    Args:
        model: changed in place.
        names: of the modules to quantise.
        compute_dtype: what weights are dequantised to.
        double: the scales are quantised too.
    """
    for name in names:
        parent, _, own = name.rpartition(".")
        plain = model.get_submodule(name)
        setattr(model.get_submodule(parent), own, _packed(plain, compute_dtype, double=double))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]  # by which PEFT chooses its layers


def _packed(plain: Any, compute_dtype: torch.dtype, *, double: bool) -> nn.Module:
    import bitsandbytes as bnb

    module = bnb.nn.Linear4bit(
        plain.in_features, plain.out_features, bias=False, compute_dtype=compute_dtype, quant_type="nf4", device="meta"
    )
    size, device = plain.weight.numel(), plain.weight.device
    weight = nn.Parameter(torch.empty((size + 1) // 2, 1, dtype=torch.uint8, device=device), requires_grad=False)
    state = _state(plain.weight.shape, size, plain.weight.dtype, device, double=double)
    # What the layers read from bitsandbytes' own parameter class.
    for key, value in {
        "quant_state": state,
        "compress_statistics": double,
        "quant_type": "nf4",
        "quant_storage": torch.uint8,
        "blocksize": BLOCK,
        "bnb_quantized": True,
        "module": module,
    }.items():
        setattr(weight, key, value)
    del module.weight
    module.register_parameter("weight", weight)
    module.quant_state = state
    module.bias = plain.bias
    if module.bias is not None:
        module.bias.requires_grad_(False)
    module.compute_type_is_set = True
    module.support_avx512bf16_for_cpu = False
    return module


def _state(shape: torch.Size, size: int, dtype: torch.dtype, device: torch.device, *, double: bool) -> Any:
    from bitsandbytes.functional import QuantState

    scales = -(-size // BLOCK)
    code = torch.empty(16, device=device)
    if not double:
        absmax = torch.empty(scales, device=device)
        return QuantState(absmax, shape=shape, code=code, blocksize=BLOCK, quant_type="nf4", dtype=dtype)
    nested = QuantState(
        torch.empty(-(-scales // NESTED_BLOCK), device=device),
        code=torch.empty(256, device=device),
        blocksize=NESTED_BLOCK,
        dtype=torch.float32,
    )
    return QuantState(
        torch.empty(scales, dtype=torch.uint8, device=device),
        shape=shape,
        code=code,
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=dtype,
        offset=torch.empty((), device=device),
        state2=nested,
    )


def quantization_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Scales and codes of all packed weights, which are no parameters."""
    found: list[torch.Tensor] = []
    for parameter in model.parameters():
        state = getattr(parameter, "quant_state", None)
        while state is not None:
            found += [each for each in (state.absmax, state.code, state.offset) if each is not None]
            state = state.state2
    return found
