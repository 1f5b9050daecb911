"""GGUF files: whole or not, by their own header. Values are not judged.

gguf's own reader makes an object of every element of every list, and believes a list's length: a forged header of a
hundred bytes keeps it busy until memory is full. This one steps over what it does not need, and takes nothing that the
file's size gives no reason to (layout: ggml's docs/gguf.md).
"""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import BinaryIO

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_UINT32, _TEXT, _LIST = 4, 8, 9
_LONGEST_NAME = 65535
_MOST_DIMENSIONS = 8  # ggml itself has four
_ALIGNMENT_KEY, _ALIGNMENT_BYTES = b"general.alignment", 32


def gguf_damage(file: Path) -> str | None:
    """What is wrong with the form of a GGUF file: its header, or a tensor that it has no bytes for; None if nothing."""
    with open(file, "rb") as stream:
        try:
            tensors = _read_tensors(_Header(stream))
        except (ValueError, RecursionError) as error:
            return f"is cut, or no GGUF file ({error})"
    return None if tensors else "holds no tensors"


class _Header:
    """Numbers and texts from the front of a file, as far as it goes."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.size = os.fstat(stream.fileno()).st_size
        self.order = "<"

    def take(self, count: int) -> bytes:
        self._require(count)
        return self.stream.read(count)

    def skip(self, count: int) -> None:
        self._require(count)
        self.stream.seek(count, os.SEEK_CUR)

    def number(self, kind: str) -> int:
        """One of `struct`'s kinds: ``I`` for 32 bits, ``Q`` for 64."""
        return int(struct.unpack(self.order + kind, self.take(struct.calcsize(kind)))[0])

    def name(self) -> bytes:
        length = self.number("Q")
        if length > _LONGEST_NAME:
            raise ValueError(f"a name of {length} bytes")
        return self.take(length)

    def _require(self, count: int) -> None:
        if count > self.size - self.stream.tell():
            raise ValueError("it ends within its header")


def _read_tensors(header: _Header) -> int:
    """Go through the whole header; how many tensors there are.

    Raises:
        ValueError: it is no header, or describes more than the file holds.
    """
    if header.take(4) != _MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = header.number("I")
    if not version & 0xFFFF:  # written on a big-endian machine
        header.order, version = ">", int.from_bytes(struct.pack("<I", version), "big")
    if version not in _VERSIONS:
        raise ValueError(f"version {version} is not known")
    tensors, facts = header.number("Q"), header.number("Q")
    alignment = _ALIGNMENT_BYTES
    for _ in range(facts):
        key, kind = header.name(), header.number("I")
        if (key, kind) == (_ALIGNMENT_KEY, _UINT32):
            alignment = header.number("I")
        else:
            _skip_value(header, kind)
    if not alignment or alignment & (alignment - 1):
        raise ValueError(f"an alignment of {alignment} bytes")
    ends = [_tensor_end(header) for _ in range(tensors)]
    begin = -(-header.stream.tell() // alignment) * alignment
    if begin + max(ends, default=0) > header.size:
        raise ValueError(f"its tensors end at byte {begin + max(ends)}, the file at {header.size}")
    return tensors


def _skip_value(header: _Header, kind: int) -> None:
    if kind in _SCALAR_BYTES:
        header.skip(_SCALAR_BYTES[kind])
    elif kind == _TEXT:
        header.skip(header.number("Q"))
    elif kind == _LIST:
        inner, count = header.number("I"), header.number("Q")
        if inner in _SCALAR_BYTES:
            header.skip(count * _SCALAR_BYTES[inner])
        else:
            for _ in range(count):
                _skip_value(header, inner)
    else:
        raise ValueError(f"a value of kind {kind}, which is none")


def _tensor_end(header: _Header) -> int:
    """Where a tensor ends, in bytes from where the first may begin."""
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    name = header.name().decode(errors="replace")
    dimensions = header.number("I")
    if dimensions > _MOST_DIMENSIONS:
        raise ValueError(f"tensor '{name}' has {dimensions} dimensions")
    count = math.prod(header.number("Q") for _ in range(dimensions))
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(header.number("I"))]  # a ValueError where it is none
    return header.number("Q") + -(-count // block) * block_bytes
