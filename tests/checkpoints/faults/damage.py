"""Damage to files, by the bytes. None of this uses the code that is to find it."""

from __future__ import annotations

import json
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


@dataclass(frozen=True)
class Range:
    """A tensor's bytes in its file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def tensor_ranges(file: Path) -> list[Range]:
    """Where the tensors of a safetensors file lie, in the order of the file."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    found = [
        Range(name, entry["dtype"], tuple(entry["shape"]), *(8 + length + offset for offset in entry["data_offsets"]))
        for name, entry in header.items()
        if name != "__metadata__"
    ]
    return sorted(found, key=lambda tensor: tensor.start)


def record_ranges(file: Path) -> list[tuple[str, int, int]]:
    """(name, start, end) of what the records of a torch file hold, the longest first."""
    found = []
    with zipfile.ZipFile(file) as archive, open(file, "rb") as stream:
        for record in archive.infolist():
            stream.seek(record.header_offset + 26)
            name, extra = struct.unpack("<HH", stream.read(4))
            start = record.header_offset + 30 + name + extra
            found.append((record.filename, start, start + record.file_size))
    return sorted(found, key=lambda record: record[1] - record[2])


def truncate(file: Path, size: int) -> None:
    with open(file, "rb+") as stream:
        stream.truncate(size)


def overwrite(file: Path, start: int, content: bytes) -> None:
    with open(file, "rb+") as stream:
        stream.seek(start)
        stream.write(content)


def zero(file: Path, start: int, end: int) -> None:
    overwrite(file, start, bytes(end - start))


def flip(file: Path, byte: int, bit: int) -> None:
    content = file.read_bytes()
    overwrite(file, byte, bytes([content[byte] ^ (1 << bit)]))


def exchange(file: Path, first: tuple[int, int], second: tuple[int, int]) -> None:
    """Exchange two ranges of equal length."""
    content = file.read_bytes()
    overwrite(file, first[0], content[second[0] : second[1]])
    overwrite(file, second[0], content[first[0] : first[1]])


def put_value(file: Path, tensor: Range, value: float) -> None:
    """Set one value in the middle of a tensor."""
    size = {"F32": 4, "BF16": 2}[tensor.dtype]
    middle = tensor.start + (tensor.end - tensor.start) // size // 2 * size
    overwrite(file, middle, struct.pack("<f", value)[4 - size :])


def empty_tensor(file: Path, name: str) -> None:
    """Rewrite the file with one tensor of shape [0], as a sharded save leaves it."""
    tensors = load_file(file)
    tensors[name] = torch.empty(0, dtype=tensors[name].dtype)
    save_file(tensors, file, metadata={"format": "pt"})


def rename_tensors(file: Path, first: str, second: str) -> None:
    """Rewrite the file with two tensors under each other's name."""
    tensors = load_file(file)
    tensors[first], tensors[second] = tensors[second], tensors[first]
    save_file(tensors, file, metadata={"format": "pt"})


def flip_matters(file: Path, byte: int, bit: int) -> bool:
    """Whether a JSON file would say something else (or nothing) with this bit flipped: ``1e-5`` and ``1E-5`` do not."""
    content = bytearray(file.read_bytes())
    before: Any = json.loads(content)
    content[byte] ^= 1 << bit
    try:
        return json.loads(content) != before
    except (ValueError, RecursionError):
        return True
