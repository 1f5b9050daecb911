"""What is in a GGUF file: tensors by type, and the few facts that a Modelfile depends on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class GgufFacts:
    """`types` counts tensors of two and more dimensions by type (``Q4_K``); `adds_bos` whether a BOS token is put
    before prompts; `context` the model's positions, if the file says; `architecture` llama.cpp's name."""

    types: dict[str, int]
    adds_bos: bool
    context: int | None
    architecture: str

    def describe_types(self) -> str:
        """``211 of 211 matrices Q8_0``, or what they are in turn."""
        total = sum(self.types.values())
        if len(self.types) == 1:
            return f"all {total} matrices {next(iter(self.types))}"
        parts = (f"{count} {name}" for name, count in sorted(self.types.items(), key=lambda item: -item[1]))
        return f"{total} matrices: " + ", ".join(parts)


def read_gguf_facts(file: Path) -> GgufFacts:
    """Read a file's header; no tensor is read.

    Raises:
        ValueError: it is no GGUF file.
    """
    from gguf import GGUFReader

    reader = GGUFReader(file)
    architecture = _value(reader, "general.architecture") or ""
    types = Counter(tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1)
    adds_bos = _value(reader, "tokenizer.ggml.add_bos_token")
    if adds_bos is None:  # llama.cpp's own default, by the kind of vocabulary (llama-vocab.cpp)
        adds_bos = _value(reader, "tokenizer.ggml.model") in ("llama", "bert")
    context = _value(reader, f"{architecture}.context_length")
    return GgufFacts(dict(types), bool(adds_bos), int(context) if context else None, str(architecture))


def _value(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()
