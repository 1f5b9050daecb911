"""Reads the files of a checkpoint once and tells what is in them; neither pickles nor whole tensors are loaded."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import zipfile
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hf_recipes.checkpoints.magnitude import abs_max
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.tensors import DamagedFile, TensorEntry, read_header

MANIFEST_NAME = "manifest.json"
VERIFIED_NAME = "verified.json"

_CHUNK_BYTES = 2 * 1024 * 1024  # a multiple of every element size; small enough to stay in the cache while it is used
_STAGED = re.compile(r"^\..*\.tmp$")
_CHECKPOINT = re.compile(r"^checkpoint-\d+$")
_TORCH_FILE = re.compile(r"\.(pt|pth)$|^(pytorch_model|adapter_model|optimizer|training_args).*\.bin$")


@dataclass(frozen=True)
class TensorFacts:
    """A tensor's dtype (safetensors' name), shape, and largest absolute value: NaN when any value is NaN, None when
    the values were not read or there are none."""

    dtype: str
    shape: tuple[int, ...]
    abs_max: float | None = None


@dataclass(frozen=True)
class FileScan:
    """A file's size and, where asked for, its SHA-256; its tensors if it is a sound safetensors file; what is wrong
    with its form."""

    bytes: int
    sha256: str | None = None
    tensors: dict[str, TensorFacts] | None = None
    damage: str | None = None


def scan_directory(directory: Path, *, values: bool, hashes: bool) -> dict[str, FileScan]:
    """Scan every file that belongs to a checkpoint, by path relative to `directory`.

    Args:
        values: read tensor values, and the checksums that torch's own files carry (headers and directories otherwise).
        hashes: compute SHA-256, in the same pass over the bytes.
    """
    return {name: _scan_file(directory / name, values, hashes) for name in list_files(directory)}


def list_files(directory: Path) -> list[str]:
    """The files of a checkpoint, relative and sorted, without the manifest and the mark of its verification, staged
    files, hidden directories, and checkpoints inside (for an output directory that holds both)."""
    names = []
    for folder, subfolders, files in os.walk(directory):
        subfolders[:] = [name for name in subfolders if not name.startswith(".") and not _CHECKPOINT.match(name)]
        names += [(Path(folder) / name).relative_to(directory).as_posix() for name in files if not _STAGED.match(name)]
    return sorted(set(names) - {MANIFEST_NAME, VERIFIED_NAME})


def _scan_file(file: Path, values: bool, hashes: bool) -> FileScan:
    size = file.stat().st_size
    damage = None
    if file.suffix == ".safetensors":
        try:
            return _scan_tensors(file, values, hashes)
        except DamagedFile as error:
            damage = str(error).removeprefix(f"{file}: ")
    elif file.suffix == ".json":
        damage = _json_damage(file)
    elif _TORCH_FILE.search(file.name):
        # A hash sees more than the archive's own checksums do.
        damage = _archive_damage(file, checksums=values and not hashes)
    return FileScan(size, sha256_of_file(file) if hashes else None, damage=damage)


def _json_damage(file: Path) -> str | None:
    try:
        json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        return f"is not JSON ({error})" if file.stat().st_size else "is empty"
    return None


def _archive_damage(file: Path, checksums: bool) -> str | None:
    """What is wrong with the zip archive that `torch.save` writes. Nothing in it is unpickled."""
    with open(file, "rb") as stream:
        if stream.read(1) == b"\x80":  # a bare pickle, as torch wrote before 1.6: nothing to check without a manifest
            return None
    try:
        with zipfile.ZipFile(file) as archive:
            bad = archive.testzip() if checksums else None
    except Exception as error:  # zipfile raises a dozen kinds on damaged archives
        return f"is not a whole torch file ({error})" if file.stat().st_size else "is empty"
    return f"record '{bad}' does not match its checksum" if bad else None


def _scan_tensors(file: Path, values: bool, hashes: bool) -> FileScan:
    size = file.stat().st_size
    entries, _ = read_header(file)
    if not values and not hashes:
        return FileScan(size, tensors={name: TensorFacts(e.dtype, e.shape) for name, e in entries.items()})
    tensors = {}
    with _Reader(file, hashes) as reader:
        reader.skip(min((entry.start for entry in entries.values()), default=size))
        for name, entry in entries.items():
            tensors[name] = TensorFacts(entry.dtype, entry.shape, reader.abs_max(entry))
        return FileScan(size, reader.hexdigest(), tensors)


class _Reader:
    """Reads a file front to back through two buffers: while one is looked at, the other is hashed in a thread."""

    def __init__(self, file: Path, hashes: bool) -> None:
        self.path = file
        self.digest = hashlib.sha256() if hashes else None
        self.buffers = [memoryview(bytearray(_CHUNK_BYTES)) for _ in range(2)]
        self.hashing: Future[None] | None = None

    def __enter__(self) -> _Reader:
        self.file: IO[bytes] = open(self.path, "rb", buffering=0)
        self.pool = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown()
        self.file.close()

    def skip(self, nbytes: int) -> None:
        """Read (and hash) `nbytes` without looking at them: the header."""
        while nbytes:
            nbytes -= len(self._next(min(nbytes, _CHUNK_BYTES)))

    def abs_max(self, entry: TensorEntry) -> float | None:
        """Read the next tensor of the file; its largest absolute value."""
        largest = None
        left = entry.nbytes
        while left:
            chunk = self._next(min(left, _CHUNK_BYTES))
            left -= len(chunk)
            value = abs_max(chunk, entry.dtype)
            # NaN stays: no comparison with it is true.
            largest = value if largest is None or value > largest or math.isnan(value) else largest
            if math.isnan(largest):
                self.skip(left)
                break
        return largest

    def hexdigest(self) -> str | None:
        """The hash of all that was read, None where none was asked for."""
        self._wait()
        return self.digest.hexdigest() if self.digest else None

    def _next(self, nbytes: int) -> memoryview:
        self.buffers.reverse()  # the other buffer may still be being hashed
        chunk = self.buffers[0][:nbytes]
        done = 0
        while done < nbytes:
            count = self.file.readinto(chunk[done:])  # type: ignore[attr-defined]
            if not count:
                raise DamagedFile(f"{self.path}: ends {nbytes - done} bytes early")
            done += count
        self._wait()
        if self.digest:
            self.hashing = self.pool.submit(self.digest.update, chunk)
        return chunk

    def _wait(self) -> None:
        if self.hashing:
            self.hashing.result()
            self.hashing = None
