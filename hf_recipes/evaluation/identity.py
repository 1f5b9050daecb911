"""What a model's kept answers belong to: its weights, its tokenizer and template, and how it was asked."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from hf_recipes.core.files import sha256_of_file, short_digest

_WEIGHTS = {".safetensors", ".bin", ".gguf", ".pt"}
_CONFIGURATION = {".json", ".jinja", ".model", ".txt"}
_NO_PART_OF_IT = {"manifest.json", "verified.json", "hf_recipes_merge.json"}
_PIECES = 32  # of a weight file; every one of them changes when a model is trained
_PIECE_BYTES = 256 * 1024


def digest(value: Any) -> str:
    """A short digest of JSON-like data."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, default=str)
    return short_digest(text)


def model_identity(name_or_path: str | Path, revision: str | None) -> str:
    """A digest of the files of a model, adapter or tokenizer; for a name on the Hub, of the name and its revision.

    Configuration files are read whole, of weight files the size and `_PIECES` pieces spread over them: reading
    gigabytes before each evaluation would cost more than it tells.
    """
    path = Path(name_or_path)
    if not path.exists():
        return digest([str(name_or_path), revision])
    files = [path] if path.is_file() else sorted(child for child in path.iterdir() if child.is_file())
    return digest([[file.name, *_file_identity(file)] for file in files if _belongs(file)])


def _belongs(file: Path) -> bool:
    return file.suffix in _WEIGHTS | _CONFIGURATION and file.name not in _NO_PART_OF_IT


def _file_identity(file: Path) -> list[Any]:
    size = file.stat().st_size
    if file.suffix in _CONFIGURATION:
        return [size, sha256_of_file(file)]
    hashed = hashlib.sha256()
    with open(file, "rb") as opened:
        for piece in range(_PIECES):
            opened.seek(piece * max(0, size - _PIECE_BYTES) // (_PIECES - 1))
            hashed.update(opened.read(_PIECE_BYTES))
    return [size, hashed.hexdigest()]
