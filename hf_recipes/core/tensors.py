"""Safetensors files as streams, read and written: the header first, then one tensor at a time; neither torch nor the
file's whole size is needed to look inside."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PureWindowsPath
from typing import Any

from hf_recipes.core.bounded_json import TooMuchJson, parse_json
from hf_recipes.core.errors import UserError
from hf_recipes.core.files import read_json

MAX_HEADER_BYTES = 100_000_000
# Every dtype of safetensors 0.8, by its own name. Elements of less than a byte are packed.
BITS_PER_ELEMENT = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}
FLOATS = ("F64", "F32", "F16", "BF16")  # whose values are numbers as they stand: neither packed nor scaled
_MAX_ELEMENTS = 2**63 - 1  # what other readers multiply in 64 bits


class DamagedFile(UserError):
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
        DamagedFile: the header is cut, no JSON, too large or holds a name twice, offsets leave gaps, overlap or
            disagree with shapes, or the file's size differs from what the header promises.
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
    header = _parse_header(file, raw)
    metadata = header.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise DamagedFile(f"{file}: __metadata__ of the header is not a map of texts")
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


def _parse_header(file: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = parse_json(raw, unique_names=True)
        if b"\\u" in raw:
            json.dumps(header, ensure_ascii=False).encode()  # half a surrogate pair is no text to other readers
    except TooMuchJson as error:
        raise DamagedFile(f"{file}: the header {error}, more than any model has: not parsed") from None
    except RecursionError:
        raise DamagedFile(f"{file}: the header is nested too deeply") from None
    except ValueError as error:
        why = f": {error}" if "twice" in str(error) else ""
        raise DamagedFile(f"{file}: the header is not JSON{why}") from None
    if not isinstance(header, dict):
        raise DamagedFile(f"{file}: the header is not a JSON object")
    return header


def _entry(file: Path, name: str, spec: Any, base: int) -> TensorEntry:
    try:
        dtype, shape, (begin, end) = spec["dtype"], tuple(spec["shape"]), spec["data_offsets"]
        if {*map(type, (*shape, begin, end))} != {int}:  # True and 1.0 count as 1 in Python only
            raise TypeError
        nbytes = end - begin
        bits = prod(shape) * BITS_PER_ELEMENT[dtype]
    except (KeyError, TypeError, ValueError):
        raise DamagedFile(f"{file}: tensor '{name}' has no readable dtype, shape and offsets") from None
    if shape and min(shape) < 0:
        raise DamagedFile(f"{file}: tensor '{name}' has a negative size in its shape {list(shape)}")
    if 0 in shape and prod(size for size in shape if size) > _MAX_ELEMENTS:
        raise DamagedFile(f"{file}: tensor '{name}' has a shape beyond all memory, {list(shape)}")
    if begin < 0 or bits != nbytes * 8:
        raise DamagedFile(f"{file}: tensor '{name}' {dtype}{list(shape)} does not fill its {nbytes} bytes")
    return TensorEntry(name, dtype, shape, base + begin, nbytes, file)


INDEX_NAMES = ("model.safetensors.index.json", "adapter_model.safetensors.index.json")
SINGLE_NAMES = ("model.safetensors", "adapter_model.safetensors")


def tensor_files(directory: Path) -> list[Path]:
    """The safetensors files that make up the model or adapter in `directory`: by its index when there is one.

    Raises:
        UserError: the index names a file outside the directory.
        DamagedFile: the index is no map of tensors to files.
    """
    for name in INDEX_NAMES:
        if (directory / name).is_file():
            return [directory / shard for shard in _shards(directory / name)]
    for name in SINGLE_NAMES:
        if (directory / name).is_file():
            return [directory / name]
    return []


def _shards(index: Path) -> list[str]:
    try:
        shards = list(dict.fromkeys(read_json(index)["weight_map"].values()))
        outside = next((shard for shard in shards if leaves(shard)), None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamagedFile(f"{index}: its weight_map is not a map of tensors to files") from None
    if outside is not None:
        raise UserError(f"{index} names '{outside}', outside its directory: do not use this model.")
    return shards


def leaves(name: str) -> bool:
    """Whether the path `name`, which an index gives, could lead out of the index's directory, on any system."""
    path = PureWindowsPath(name)  # takes both kinds of separator
    return not name or "\0" in name or bool(path.anchor) or ".." in path.parts


def iter_entries(directory: Path) -> Iterator[TensorEntry]:
    """All tensors of the model or adapter in `directory`, file by file, in file order."""
    for file in tensor_files(directory):
        yield from read_header(file)[0].values()


def entries_by_name(directory: Path) -> dict[str, TensorEntry]:
    """As `iter_entries`, by name; of a name that stands in two files the last."""
    return {entry.name: entry for entry in iter_entries(directory)}


_TORCH_NAMES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
}


def torch_dtype(name: str) -> Any:
    """The `torch.dtype` for a safetensors dtype name; raises `KeyError` where torch has none (six-bit floats).

    ``F4`` is torch's pair of 4-bit floats in one byte: the last dimension there is half of safetensors'.
    """
    import torch

    return getattr(torch, _TORCH_NAMES[name])


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written: its name, safetensors dtype name and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * BITS_PER_ELEMENT[self.dtype] // 8


class SafetensorsWriter:
    """Writes one safetensors file front to back: the header at once, then one tensor after the other.

    Use as a context manager and write each of `specs` in their order; leaving it syncs the file to disk. `specs` are
    the tensors given, those of wider elements first, so that every tensor lies aligned to its element size.
    """

    def __init__(self, file: Path, tensors: Iterable[TensorSpec], metadata: dict[str, str]) -> None:
        self.file = file
        self.specs = sorted(tensors, key=lambda spec: -BITS_PER_ELEMENT[spec.dtype])
        self._metadata = metadata
        self._written = 0

    def __enter__(self) -> SafetensorsWriter:
        header = safetensors_header(self.specs, self._metadata)
        self._stream = open(self.file, "xb")
        self._stream.write(len(header).to_bytes(8, "little") + header)
        return self

    def write(self, name: str, data: bytes | bytearray | memoryview) -> None:
        """Append the bytes of the next tensor; `name` and size must be those of the header."""
        spec = self.specs[self._written]
        size = memoryview(data).nbytes
        if name != spec.name or size != spec.nbytes:
            raise ValueError(f"{self.file}: got '{name}' of {size} bytes, next is '{spec.name}' of {spec.nbytes}")
        self._stream.write(data)
        self._written += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._stream:
            if kind is None:
                if self._written < len(self.specs):
                    raise ValueError(f"{self.file}: tensor '{self.specs[self._written].name}' was not written")
                self._stream.flush()
                os.fsync(self._stream.fileno())


def safetensors_header(specs: Sequence[TensorSpec], metadata: dict[str, str]) -> bytes:
    """The JSON header for tensors that follow each other, padded with blanks so that the data begin at a multiple of 8
    bytes; a `ValueError` when a name is there twice or the header is longer than the format allows."""
    header: dict[str, Any] = {"__metadata__": metadata}
    position = 0
    for spec in specs:
        if spec.name in header:
            raise ValueError(f"tensor '{spec.name}' is there twice")
        end = position + spec.nbytes
        header[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MAX_HEADER_BYTES - 8:
        raise ValueError(f"a header of {len(text)} bytes is more than the format allows")
    return text + b" " * (-len(text) % 8)


def tensor_bytes(tensor: Any) -> memoryview:
    """The bytes of a CPU `torch.Tensor` as safetensors stores them (row-major, little-endian)."""
    import torch

    return memoryview(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def dtype_name(dtype: Any) -> str:
    """The safetensors name of a `torch.dtype`."""
    return next(name for name in _TORCH_NAMES if torch_dtype(name) == dtype)
