"""Weights that bitsandbytes packed to 8 bits (LLM.int8()), read back as the values they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import TensorEntry


@dataclass(frozen=True)
class Quantized8bit:
    """One packed weight, int8 of (outputs, inputs), with the scale of each row; its values are fp32.

    `transposed` when the layer keeps (inputs, outputs), as `Conv1D` does: `shape` and the values are laid out so.
    """

    name: str
    packed: TensorEntry
    scales: TensorEntry
    transposed: bool = False
    dtype: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.packed.shape[::-1] if self.transposed else self.packed.shape

    @property
    def file(self) -> Path:
        return self.packed.file

    def load(self) -> Any:
        """``q · scale / 127`` in fp32, by bitsandbytes' own function, which transformers' ``dequantize()`` takes too.

        Raises:
            UserError: bitsandbytes is not installed.
        """
        try:
            from bitsandbytes.functional import int8_vectorwise_dequant
        except ImportError:
            raise UserError("An 8-bit base needs bitsandbytes: run `pip install bitsandbytes`.") from None
        values = int8_vectorwise_dequant(self.packed.load(), self.scales.load())
        return values.T.contiguous() if self.transposed else values


def group_8bit(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry | Quantized8bit]:
    """Put packed weights and their scales together; other tensors stay as they are, in order.

    The layout is that of `bitsandbytes.nn.Linear8bitLt`: beside ``x.weight`` (int8) there is ``x.SCB``, the largest
    magnitude of each row, and ``x.weight_format``, 0 for row by row.

    Raises:
        UserError: nothing is packed, a weight's scales are missing or do not fit, or it is in one of the layouts that
            bitsandbytes wrote for single GPU generations before 0.45.
    """
    packed = {name for name, entry in entries.items() if name.endswith(".weight") and entry.dtype == "I8"}
    if not packed:
        raise UserError("The base's config says 8-bit, but none of its tensors is packed: fetch it again.")
    used = {f"{name.removesuffix('.weight')}.{part}" for name in packed for part in ("SCB", "weight_format")}
    tensors: dict[str, TensorEntry | Quantized8bit] = {}
    for name, entry in entries.items():
        if name in packed:
            tensors[name] = _quantized(entry, entries)
        elif name not in used:
            tensors[name] = entry
    return tensors


def transpose_8bit(tensor: Quantized8bit) -> Quantized8bit:
    """The same weight for a layer that keeps (inputs, outputs)."""
    return replace(tensor, transposed=True)


def _quantized(packed: TensorEntry, entries: Mapping[str, TensorEntry]) -> Quantized8bit:
    module = packed.name.removesuffix(".weight")
    scales, layout = entries.get(f"{module}.SCB"), entries.get(f"{module}.weight_format")
    if scales is None or scales.dtype != "F32" or scales.shape != packed.shape[:1]:
        raise UserError(f"'{packed.name}' of the base is 8-bit, but '{module}.SCB' does not scale it: fetch it again.")
    if layout is not None and any(layout.read()):
        raise UserError(
            f"'{packed.name}' of the base is in a layout of 8-bit weights for one kind of GPU, which bitsandbytes has "
            "given up: load and save it with bitsandbytes before 0.45, or give the 16-bit model with --base."
        )
    return Quantized8bit(packed.name, packed, scales)
