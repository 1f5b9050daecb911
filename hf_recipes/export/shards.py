"""Which file a tensor of the merged model goes to, where in it, and the index over all files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.tensors import BITS_PER_ELEMENT, safetensors_header
from hf_recipes.export.output import Output
from hf_recipes.export.plan import MergePlan

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}


@dataclass(frozen=True)
class Placed:
    """An output, its file, and where its bytes begin there."""

    output: Output
    file: Path
    start: int


def parse_size(text: str) -> int:
    """Bytes of ``5GB``, ``500MiB`` or a bare number.

    Raises:
        UserError: it is none of them, or nothing at all.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", str(text).upper())
    size = int(float(match[1]) * _UNITS[match[2]]) if match and match[2] in _UNITS else 0
    if size <= 0:
        raise UserError(f"max shard size: '{text}' is no size: write, for example, 5GB or 500MB.")
    return size


def divide(plan: MergePlan, max_bytes: int | None) -> MergePlan:
    """The plan with its tensors in files of at most `max_bytes` (a larger tensor gets a file of its own), in order; as
    in the base when that is None."""
    if max_bytes is None:
        return plan
    files: list[list[Output]] = [[]]
    filled = 0
    for output in plan.outputs:
        if files[-1] and filled + output.spec.nbytes > max_bytes:
            files.append([])
            filled = 0
        files[-1].append(output)
        filled += output.spec.nbytes
    names = shard_names(len(files))
    outputs = [replace(output, shard=name) for name, part in zip(names, files, strict=True) for output in part]
    return replace(plan, outputs=outputs)


def shard_names(count: int) -> list[str]:
    """``model.safetensors``, or ``model-00001-of-00003.safetensors`` …"""
    if count == 1:
        return ["model.safetensors"]
    return [f"model-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


def place_tensors(plan: MergePlan, directory: Path) -> dict[str, Placed]:
    """Where each tensor goes, by name."""
    placed = {}
    for shard, outputs in plan.shards().items():
        ordered = _in_file_order(outputs)
        position = 8 + len(_header(ordered))
        for output in ordered:
            placed[output.spec.name] = Placed(output, directory / shard, position)
            position += output.spec.nbytes
    return placed


def write_headers(placed: dict[str, Placed], directory: Path) -> None:
    """Make every file, in its whole length, with its header."""
    files: dict[Path, list[Output]] = {}
    for place in placed.values():
        files.setdefault(place.file, []).append(place.output)
    for file, outputs in files.items():
        header = _header(outputs)
        with open(file, "xb") as stream:
            stream.write(len(header).to_bytes(8, "little") + header)
            stream.truncate(8 + len(header) + sum(output.spec.nbytes for output in outputs))


def _in_file_order(outputs: Sequence[Output]) -> list[Output]:
    """Wider elements first, so that every tensor lies aligned to its element size; else as in the base, so that
    what is copied lies in one piece."""
    return sorted(outputs, key=lambda output: -BITS_PER_ELEMENT[output.spec.dtype])


def _header(ordered: Sequence[Output]) -> bytes:
    return safetensors_header([output.spec for output in ordered], {"format": "pt"})


def index_of(plan: MergePlan, old: dict[str, Any] | None) -> dict[str, Any] | None:
    """The content of ``model.safetensors.index.json``: the file of each tensor, the total of bytes and of parameters;
    None for a single file that needs none.

    Args:
        plan: as divided.
        old: the base's index, whose further metadata is kept.
    """
    if len(plan.shards()) == 1 and plan.outputs[0].shard == "model.safetensors":
        return None
    metadata = {
        **((old or {}).get("metadata") or {}),
        "total_parameters": sum(output.elements for output in plan.outputs),
        "total_size": plan.nbytes,
    }
    return {"metadata": metadata, "weight_map": {output.spec.name: output.shard for output in plan.outputs}}
