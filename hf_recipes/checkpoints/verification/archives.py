"""torch's own files (.pt, .pth, .bin, .distcp, .metadata): whole or not, and what they would import. Nothing in them
is unpickled, and no more is unpacked than the file's size gives reason to."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hf_recipes.checkpoints.verification.pickles import foreign_names, names_in

_NAMES = re.compile(
    r"\.(pt|pth|distcp|ckpt|pkl|pickle)$|^\.metadata$|^(pytorch_model|adapter_model|optimizer|training_args)[^/]*\.bin$"
)
_ZIP, _PICKLE = b"PK\x03\x04", b"\x80"
_MAX_PICKLE_BYTES = 64 * 1024**2
_MAX_UNPACKED = 100  # times its packed size; torch does not pack at all


@dataclass(frozen=True)
class TorchFile:
    """What is wrong with the form of a torch file, and the names it would import that no checkpoint holds."""

    damage: str | None = None
    foreign: tuple[str, ...] = ()


def is_torch_file(file: Path) -> bool:
    """Whether `file` is one by its name, or a ``.bin`` by its first bytes."""
    if _NAMES.search(file.name):
        return True
    if file.suffix != ".bin":
        return False
    with open(file, "rb") as stream:
        return stream.read(4).startswith((_ZIP, _PICKLE))


def read_torch_file(file: Path, *, checksums: bool) -> TorchFile:
    """Read the directories and pickles of a torch file.

    Args:
        checksums: read every record and compare it with the checksum that the archive carries.
    """
    size = file.stat().st_size
    if not size:
        return TorchFile("is empty")
    names: set[str] = set()
    try:
        with open(file, "rb") as stream:
            # As torch decides: an archive has to begin as one, and is then read from its end.
            if stream.read(4) == _ZIP:
                damage = _read_archives(stream, size, names, checksums, many=file.suffix == ".distcp")
            else:
                stream.seek(0)
                names, damage = names_in(stream), None
    except Exception as error:  # zipfile raises a dozen kinds on damaged archives
        return TorchFile(f"is not a whole torch file ({error or type(error).__name__})")
    return TorchFile(damage, foreign_names(names))


def _read_archives(stream: IO[bytes], size: int, names: set[str], checksums: bool, many: bool) -> str | None:
    """One archive, or, in a distributed checkpoint's file, one after the other: found from the last to the first."""
    end = size
    while end:
        with zipfile.ZipFile(_Window(stream, end)) as archive:
            begin = min((entry.header_offset for entry in archive.infolist()), default=end)
            damage = _unpacks_too_far(archive) or _read_pickles(archive, names)
            if damage is None and checksums and (bad := archive.testzip()):
                damage = f"record '{bad}' does not match its checksum"
        if damage:
            return damage
        if begin and not many:
            return f"has {begin:,} bytes before its archive"
        end = begin if begin < end else 0
    return None


def _unpacks_too_far(archive: zipfile.ZipFile) -> str | None:
    entries = archive.infolist()
    packed, unpacked = (sum(getattr(entry, kind) for entry in entries) for kind in ("compress_size", "file_size"))
    held = archive.start_dir  # where the directory begins: all records lie before it
    if packed > held or unpacked > _MAX_UNPACKED * held:
        return f"would unpack to {unpacked:,} bytes, from {held:,}: not unpacked"
    twice = len(entries) - len({entry.filename for entry in entries})
    return f"holds {twice} records under the name of another" if twice else None


def _read_pickles(archive: zipfile.ZipFile, names: set[str]) -> str | None:
    for entry in archive.infolist():
        if not entry.filename.endswith(".pkl"):
            continue
        if entry.file_size > _MAX_PICKLE_BYTES:
            return f"holds a pickle of {entry.file_size:,} bytes, more than is read here: do not load it"
        with archive.open(entry) as record:
            names |= names_in(io.BytesIO(record.read(_MAX_PICKLE_BYTES)))
    return None


class _Window(io.RawIOBase):
    """The first `end` bytes of a stream, as if the file ended there."""

    def __init__(self, stream: IO[bytes], end: int) -> None:
        self._stream, self._end, self._at = stream, end, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        if start + offset < 0:
            raise OSError("before the beginning")  # what zipfile expects of a file too short for its last record
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._end - self._at)
        self._stream.seek(self._at)
        data = self._stream.read(left if size is None or size < 0 else min(size, left))
        self._at += len(data)
        return data
