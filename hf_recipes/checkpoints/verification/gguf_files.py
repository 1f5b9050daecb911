"""GGUF files: whole or not, by their own header. Quantised values are not judged."""

from __future__ import annotations

from pathlib import Path

from hf_recipes.core.errors import first_line

SUFFIX = ".gguf"


def gguf_damage(file: Path) -> str | None:
    """What is wrong with the form of a GGUF file: its header, or a tensor that it has no bytes for; None if nothing."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
    except Exception as error:  # whatever numpy and Python raise on bytes that are no header
        return f"is cut, or no GGUF file ({first_line(error)})"
    return None if reader.tensors else "holds no tensors"
