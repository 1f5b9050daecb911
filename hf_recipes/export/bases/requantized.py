"""The values QLoRA training saw: weights of the 16-bit original quantised and dequantised again, one at a time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.four_bits import dequantized
from hf_recipes.core.tensors import TensorEntry
from hf_recipes.export.bases.trained_quantization import TrainedQuantization

if TYPE_CHECKING:
    import torch

_SAFETENSORS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_BLOCK = 64  # of `bitsandbytes.nn.Params4bit`
_NESTED_BLOCK = 256  # of `bitsandbytes.functional.quantize_4bit`, for the scales
_CHUNK = _BLOCK << 15  # weights quantised at a time: about 14 bytes of intermediates each


@dataclass(frozen=True)
class Requantized:
    """One weight of a 16-bit or 32-bit base as a quantised layer computed with it.

    Nothing is kept between two calls of `load`. `transposed` for a layer that keeps (inputs, outputs), as `Conv1D`.
    """

    original: TensorEntry
    settings: TrainedQuantization
    transposed: bool = False

    @property
    def name(self) -> str:
        return self.original.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.original.shape

    @property
    def file(self) -> Path:
        return self.original.file

    @property
    def dtype(self) -> str:
        """The safetensors dtype of the values: that of the weights in training; fp32 for 8 bits."""
        return "F32" if self.settings.kind == "int8" else _SAFETENSORS[self.settings.dtype]

    def load(self) -> torch.Tensor:
        """Quantise and dequantise, laid out as in the checkpoint; raises `UserError` without bitsandbytes."""
        import torch

        weight = self.original.load().to(getattr(torch, self.settings.dtype))
        values = requantize(weight.T.contiguous() if self.transposed else weight, self.settings)
        return values.T.contiguous() if self.transposed else values


def requantize(weight: torch.Tensor, settings: TrainedQuantization) -> torch.Tensor:
    """What `bitsandbytes` makes of a weight, to the bit of what transformers' ``dequantize()`` gives on a CPU.

    The mean that double quantisation takes off the scales is a sum over all of them; another order of summation (a
    GPU, other threads) may move it by a unit in the last place of fp32.

    Args:
        weight: 2-D (outputs, inputs) in the dtype it was quantised from.
        settings: its kind and whether the scales are quantised.

    Returns:
        The same shape; in the dtype of `weight`, for 8 bits in fp32.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    import torch

    try:
        from bitsandbytes import functional
    except ImportError:
        raise UserError(
            "Dequantised base values need bitsandbytes: run `pip install bitsandbytes`, or give --base-values original."
        ) from None
    if settings.kind == "int8":
        rows = weight.split(max(1, _CHUNK // weight.shape[1]))
        packed_rows = (functional.int8_vectorwise_quant(each.to(torch.float16)) for each in rows)
        return torch.cat([functional.int8_vectorwise_dequant(packed, scales) for packed, scales, _ in packed_rows])
    parts = [
        functional.quantize_4bit(chunk, blocksize=_BLOCK, quant_type=settings.kind)
        for chunk in weight.reshape(-1).split(_CHUNK)
    ]
    packed = torch.cat([packed for packed, _ in parts])
    state = replace_state(parts[0][1], torch.cat([state.absmax for _, state in parts]), weight.shape, settings.double)
    return dequantized(packed, state)


def replace_state(one: Any, scales: torch.Tensor, shape: torch.Size, double: bool) -> Any:
    """The `QuantState` of a whole weight from that of one of its chunks; `double` as `quantize_4bit` does it."""
    from bitsandbytes import functional

    state = functional.QuantState(
        absmax=scales,
        shape=shape,
        code=one.code,
        blocksize=one.blocksize,
        quant_type=one.quant_type,
        dtype=one.dtype,
    )
    if double:
        state.offset = scales.mean()
        state.absmax, state.state2 = functional.quantize_blockwise(scales - state.offset, blocksize=_NESTED_BLOCK)
        state.nested = True
    return state
