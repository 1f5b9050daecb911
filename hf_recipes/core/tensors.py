"""Safetensors files as streams: the header first, then one tensor at a time; neither torch nor the file's whole size
is needed to look inside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

MAX_HEADER_BYTES = 100_000_000
BITS_PER_ELEMENT = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}


class DamagedFile(ValueError):
    """A tensor file whose header and bytes do not fit together; the message names the file and what is wrong."""


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies. `start` is in bytes from the beginning of `file`; `dtype` is safetensors' own name."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    nbytes: int
    file: Path

    def read(self) -> bytearray:
        """Read the tensor's bytes into a new writable buffer (plain reads, no mapping: pages are not kept)."""
        buffer = bytearray(self.nbytes)
        view = memoryview(buffer)
        with open(self.file, "rb", buffering=0) as file:
            file.seek(self.start)
            done = 0
            while done < self.nbytes:
                count = file.readinto(view[done:])
                if not count:
                    raise DamagedFile(f"{self.file}: tensor '{self.name}' ends after {done} of {self.nbytes} bytes")
                done += count
        return buffer

    def load(self) -> Any:
        """Read the tensor as a CPU `torch.Tensor` of its stored dtype and shape."""
        import torch

        if self.nbytes == 0:
            return torch.empty(self.shape, dtype=torch_dtype(self.dtype))
        return torch.frombuffer(self.read(), dtype=torch_dtype(self.dtype)).reshape(self.shape)


def read_header(file: Path) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Read a safetensors header: entries in file order, and the metadata.

    Raises:
        DamagedFile: the header is cut or no JSON, offsets leave gaps, overlap or disagree with shapes, or the file's
            size differs from what the header promises.
    """
    size = file.stat().st_size
    with open(file, "rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise DamagedFile(f"{file}: {size} bytes are too few for a safetensors header")
        length = int.from_bytes(prefix, "little")
        if length > min(MAX_HEADER_BYTES, size - 8):
            raise DamagedFile(f"{file}: header of {length} bytes does not fit into a file of {size}")
        raw = stream.read(length)
    try:
        header = json.loads(raw)
    except ValueError:
        raise DamagedFile(f"{file}: the header is not JSON") from None
    if not isinstance(header, dict):
        raise DamagedFile(f"{file}: the header is not a JSON object")
    metadata = header.pop("__metadata__", None) or {}
    base = 8 + length
    entries = [_entry(file, name, spec, base) for name, spec in header.items()]
    entries.sort(key=lambda entry: (entry.start, entry.nbytes))
    position = base
    for entry in entries:
        if entry.start != position:
            raise DamagedFile(f"{file}: tensor '{entry.name}' starts at byte {entry.start}, expected {position}")
        position += entry.nbytes
    if position != size:
        raise DamagedFile(f"{file}: {size} bytes, but the header describes {position}")
    return {entry.name: entry for entry in entries}, metadata


def _entry(file: Path, name: str, spec: Any, base: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = spec["dtype"], tuple(int(n) for n in spec["shape"]), spec["data_offsets"]
        nbytes = end - begin
        bits = prod(shape) * BITS_PER_ELEMENT[dtype]
    except (KeyError, TypeError, ValueError):
        raise DamagedFile(f"{file}: tensor '{name}' has no readable dtype, shape and offsets") from None
    if begin < 0 or bits != nbytes * 8:
        raise DamagedFile(f"{file}: tensor '{name}' {dtype}{list(shape)} does not fill its {nbytes} bytes")
    return TensorEntry(name, dtype, shape, base + begin, nbytes, file)


INDEX_NAMES = ("model.safetensors.index.json", "adapter_model.safetensors.index.json")
SINGLE_NAMES = ("model.safetensors", "adapter_model.safetensors")


def tensor_files(directory: Path) -> list[Path]:
    """The safetensors files that make up the model or adapter in `directory`: by its index when there is one."""
    for name in INDEX_NAMES:
        if (directory / name).is_file():
            weight_map = json.loads((directory / name).read_text(encoding="utf-8"))["weight_map"]
            return [directory / shard for shard in dict.fromkeys(weight_map.values())]
    for name in SINGLE_NAMES:
        if (directory / name).is_file():
            return [directory / name]
    return []


def iter_entries(directory: Path) -> Iterator[TensorEntry]:
    """All tensors of the model or adapter in `directory`, file by file, in file order."""
    for file in tensor_files(directory):
        yield from read_header(file)[0].values()


def torch_dtype(name: str) -> Any:
    """The `torch.dtype` for a safetensors dtype name."""
    import torch

    return {
        "BOOL": torch.bool,
        "U8": torch.uint8,
        "I8": torch.int8,
        "F8_E4M3": torch.float8_e4m3fn,
        "F8_E5M2": torch.float8_e5m2,
        "I16": torch.int16,
        "U16": torch.uint16,
        "F16": torch.float16,
        "BF16": torch.bfloat16,
        "I32": torch.int32,
        "U32": torch.uint32,
        "F32": torch.float32,
        "I64": torch.int64,
        "U64": torch.uint64,
        "F64": torch.float64,
    }[name]
