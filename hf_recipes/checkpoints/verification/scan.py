"""Reads the files of a checkpoint once and tells what is in them; neither pickles nor whole tensors are loaded."""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import IO

from hf_recipes.checkpoints.verification.archives import is_torch_file, read_torch_file
from hf_recipes.checkpoints.verification.gguf_files import gguf_damage
from hf_recipes.checkpoints.verification.json_files import MAX_JSON_BYTES, read_json_file
from hf_recipes.checkpoints.verification.paths import walk_files
from hf_recipes.checkpoints.verification.scan_facts import FileScan, TensorFacts
from hf_recipes.core.cores import usable_cores
from hf_recipes.core.files import sha256_of_file
from hf_recipes.core.tensors import DamagedFile, TensorEntry, read_header

__all__ = ["MANIFEST_NAME", "VERIFIED_NAME", "FileScan", "TensorFacts", "list_files", "scan_directory"]

MANIFEST_NAME = "manifest.json"
VERIFIED_NAME = "verified.json"

_MARKS = (MANIFEST_NAME, VERIFIED_NAME)
_CHUNK_BYTES = 2 * 1024 * 1024  # a multiple of every element size; small enough to stay in the cache while it is used
_MAX_THREADS = 8


def scan_directory(
    directory: Path, *, values: bool, hashes: bool, checksums: bool | None = None, threads: int | None = None
) -> dict[str, FileScan]:
    """Scan every file that belongs to a checkpoint, by path relative to `directory`, sorted.

    Args:
        values: read tensor values (headers and directories otherwise).
        hashes: compute SHA-256, in the same pass over the bytes.
        checksums: compare torch's own files with the checksums in them; None: with `values`, unless there are `hashes`
            (a hash that is compared with a manifest's sees more).
        threads: how many files are read at once, with two buffers of 2 MiB each; None: one for each core, at most 8.
    """
    checksums = values and not hashes if checksums is None else checksums
    scan_one = partial(_scan_file, values=values, hashes=hashes, checksums=checksums)
    names, refused = walk_files(directory)
    names = [name for name in names if name not in _MARKS]
    scans = {name: FileScan(0, damage=reason) for name, reason in refused.items() if name not in _MARKS}
    if not values and not hashes:
        scans |= {name: scan_one(directory / name) for name in names}
        return dict(sorted(scans.items()))
    by_size = sorted(names, key=lambda name: -(directory / name).stat().st_size)  # the longest must not come last
    with ThreadPoolExecutor(threads or min(usable_cores(), _MAX_THREADS)) as pool:
        found = pool.map(scan_one, (directory / name for name in by_size))
        scans |= dict(zip(by_size, found, strict=True))
    return dict(sorted(scans.items()))


def list_files(directory: Path) -> list[str]:
    """The files of a checkpoint, relative and sorted, without the manifest and the mark of its verification, staged
    files, hidden directories, checkpoints inside (for an output directory that holds both), and what must not be
    opened (`paths.walk_files`)."""
    return [name for name in walk_files(directory)[0] if name not in _MARKS]


def _scan_file(file: Path, values: bool, hashes: bool, checksums: bool) -> FileScan:
    try:
        return _scan_readable(file, values, hashes, checksums)
    except OSError as error:  # the disk answers with an error, or the file may not be read
        return FileScan(0, damage=f"cannot be read ({error.strerror or error})")


def _scan_readable(file: Path, values: bool, hashes: bool, checksums: bool) -> FileScan:
    size = file.stat().st_size
    if file.suffix == ".safetensors":
        try:
            return _scan_tensors(file, values, hashes)
        except DamagedFile as error:
            return FileScan(size, _hash(file, hashes), damage=str(error).removeprefix(f"{file}: "))
    if file.suffix == ".json":
        return _scan_json(file, size, hashes)
    if file.suffix == ".gguf":
        return FileScan(size, _hash(file, hashes), damage=gguf_damage(file))
    if is_torch_file(file):
        found = read_torch_file(file, checksums=checksums)
        return FileScan(size, _hash(file, hashes), damage=found.damage, foreign=found.foreign)
    return FileScan(size, _hash(file, hashes))


def _hash(file: Path, hashes: bool) -> str | None:
    return sha256_of_file(file) if hashes else None


def _scan_json(file: Path, size: int, hashes: bool) -> FileScan:
    if size > MAX_JSON_BYTES:
        return FileScan(size, _hash(file, hashes), note=f"is larger than {MAX_JSON_BYTES // 10**6} MB: not parsed")
    raw = file.read_bytes()
    found = read_json_file(file.name, raw)
    sha256 = hashlib.sha256(raw).hexdigest() if hashes else None
    return FileScan(size, sha256, damage=found.damage, note=found.note, content=found.content)


def _scan_tensors(file: Path, values: bool, hashes: bool) -> FileScan:
    size = file.stat().st_size
    entries, _ = read_header(file)
    if not values and not hashes:
        return FileScan(size, tensors={name: TensorFacts(e.dtype, e.shape) for name, e in entries.items()})
    from hf_recipes.checkpoints.verification.magnitude import (
        can_judge,  # numpy, which the level "structure" does without
    )

    tensors = {}
    unknown = sorted({entry.dtype for entry in entries.values() if not can_judge(entry.dtype)})
    note = f"holds {', '.join(unknown)}, whose values are not judged" if unknown else None
    with _Reader(file, hashes) as reader:
        reader.skip(min((entry.start for entry in entries.values()), default=size))
        for name, entry in entries.items():
            tensors[name] = TensorFacts(entry.dtype, entry.shape, reader.abs_max(entry))
        return FileScan(size, reader.hexdigest(), tensors, note=note)


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
        """Read (and hash) `nbytes` without looking at them: the header, or values of which nothing is known."""
        while nbytes:
            nbytes -= len(self._next(min(nbytes, _CHUNK_BYTES)))

    def abs_max(self, entry: TensorEntry) -> float | None:
        """Read the next tensor of the file; its largest absolute value, None where its dtype is not judged."""
        from hf_recipes.checkpoints.verification.magnitude import abs_max, can_judge

        if not can_judge(entry.dtype):
            self.skip(entry.nbytes)
            return None
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
