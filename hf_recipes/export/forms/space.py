"""Disk space that forms take, asked for before the first is written."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import DamagedFile, iter_entries
from hf_recipes.export.forms.names import CONVERTED, GGUF_BITS, Form

# Linear layers in 4 or 8 bits, embeddings and head in 16: most of a small model are embeddings.
_BNB_BITS = {"4bit": 10.0, "8bit": 12.0}
_MERGED_BITS = {"bf16": 16.0, "fp16": 16.0, "fp32": 32.0}


def needed_bytes(forms: Sequence[Form], parameters: int, adapter_bytes: int) -> int:
    """Upper estimate of what `forms` of a model with that many parameters take, what they are made from included."""
    bits = sum(_bits(form) for form in forms)
    from_merged = any(form.kind in ("bnb", "gguf") for form in forms)
    if from_merged and not any(form.name in ("merged-bf16", "merged-fp16") for form in forms):
        bits += 16.0
    if any(form.kind == "gguf" and form.variant not in CONVERTED for form in forms):
        bits += 16.0
    adapters = sum(form.kind == "adapter" for form in forms)
    return int(parameters * bits / 8) + adapters * adapter_bytes


def count_parameters(directory: Path) -> int:
    """Elements of all tensors in a model directory; of a GGUF file or packed base, as many as 4 bits each would be.

    Raises:
        UserError: a file of it is damaged.
    """
    total = 0
    try:
        for entry in iter_entries(directory):
            packed = entry.dtype in ("U8", "I8")  # two weights a byte
            total += entry.nbytes * 2 if packed else prod(entry.shape)
    except DamagedFile as error:
        raise UserError(f"The model to be written is damaged: {error}; fetch it again, or train again.") from None
    return total or sum(2 * file.stat().st_size for file in directory.glob("*.gguf"))


def _bits(form: Form) -> float:
    if form.kind == "merged":
        return _MERGED_BITS[form.variant]
    if form.kind == "bnb":
        return _BNB_BITS[form.variant]
    return GGUF_BITS[form.variant] if form.kind == "gguf" else 0.0
