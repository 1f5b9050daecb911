"""Weights that bitsandbytes packed to 4 bits, read back as the 16-bit or 32-bit values they stand for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.four_bits import dequantized
from hf_recipes.core.tensors import TensorEntry

_STATE = re.compile(r"^(?P<weight>.+)\.quant_state\.bitsandbytes__(nf4|fp4)$")
_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True)
class Quantized4bit:
    """One packed weight with its scales; `dtype` (safetensors name) and `shape` are those of the values.

    `transposed` when the layer keeps (inputs, outputs), as `Conv1D` does, and the packed values do not.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    packed: TensorEntry
    state: dict[str, TensorEntry]
    transposed: bool = False

    @property
    def file(self) -> Path:
        return self.packed.file

    def load(self) -> Any:
        """Dequantise; raises `UserError` when bitsandbytes is not installed."""
        try:
            from bitsandbytes.functional import QuantState
        except ImportError:
            raise UserError("A 4-bit base needs bitsandbytes: run `pip install bitsandbytes`.") from None
        import torch

        state = QuantState.from_dict({key: entry.load() for key, entry in self.state.items()}, torch.device("cpu"))
        packed = self.packed.load().view(torch.uint8).reshape(-1, 1)  # stored as bytes or in a float dtype's clothes
        values = dequantized(packed, state)
        return values.T.contiguous() if self.transposed else values


def group_4bit(entries: Mapping[str, TensorEntry]) -> dict[str, TensorEntry | Quantized4bit]:
    """Put packed weights and their scales together; other tensors stay as they are, in order.

    The layout is that of `QuantState.as_dict(packed=True)`: scales are named after the weight, and one tensor of bytes
    holds a JSON with the weight's dtype and shape.
    """
    states = {match["weight"]: entry for name, entry in entries.items() if (match := _STATE.match(name))}
    if not states:
        raise UserError("The base's config says 4-bit, but none of its tensors is packed: fetch it again.")
    used = {f"{weight}.{part}" for weight in states for part in _PARTS} | {entry.name for entry in states.values()}
    tensors: dict[str, TensorEntry | Quantized4bit] = {}
    for name, entry in entries.items():
        if name in states:
            tensors[name] = _quantized(entry, states[name], entries)
        elif name not in used:
            tensors[name] = entry
    return tensors


def transpose_4bit(tensor: Quantized4bit) -> Quantized4bit:
    """The same weight for a layer that keeps (inputs, outputs)."""
    return replace(tensor, shape=tensor.shape[::-1], transposed=True)


def _quantized(packed: TensorEntry, state: TensorEntry, entries: Mapping[str, TensorEntry]) -> Quantized4bit:
    try:
        facts = json.loads(bytes(state.read()))
        dtype, shape = _DTYPES[facts["dtype"]], tuple(facts["shape"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"'{state.name}' of the base does not say what '{packed.name}' was: fetch it again.") from None
    parts = {
        f"{packed.name}.{part}": entries[f"{packed.name}.{part}"]
        for part in _PARTS
        if f"{packed.name}.{part}" in entries
    }
    return Quantized4bit(packed.name, dtype, shape, packed, {**parts, state.name: state})
