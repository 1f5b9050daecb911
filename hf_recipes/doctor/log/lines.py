"""A log as clean lines, whatever is in it: colours, progress bars, binary junk, lines of megabytes. Constant memory."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

BLOCK_BYTES = 1 << 18
LINE_BYTES = 1 << 13  # of a line that is looked at

# Colours and other commands to a terminal (ECMA-48): CSI, OSC to its end, and single escapes.
_COMMANDS = re.compile(rb"\x1b(?:\[[0-9;:?<=>]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd\u202a-\u202e\u2066-\u2069\ud800-\udfff]+")


@dataclass(frozen=True)
class Block:
    """Whole lines of a log, without colours, and the number of the first."""

    first_line: int
    data: bytes

    def lines(self) -> Iterator[tuple[int, str]]:
        """Number and text of each. Returns within a line make several texts of it; of a progress bar's states in a row
        the last is given, since there may be a hundred for every other line."""
        bar: tuple[int, bytes] | None = None
        for offset, raw in enumerate(self.data.split(b"\n")):
            for part in raw.split(b"\r") if b"\r" in raw else (raw,):
                if not part:
                    continue
                if part.endswith((b"it]", b"it/s]")) and b"%|" in part:
                    bar = (self.first_line + offset, part)
                    continue
                if bar is not None:
                    yield bar[0], as_text(bar[1])
                    bar = None
                yield self.first_line + offset, as_text(part)
        if bar is not None:
            yield bar[0], as_text(bar[1])


def as_text(raw: bytes) -> str:
    """Bytes as text on one line: what is no UTF-8 and no text is left out, what is too long is cut."""
    return _CONTROLS.sub("", raw[:LINE_BYTES].decode("utf-8", errors="replace")).rstrip()


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    """The stream as it comes; as UTF-8 where it is UTF-16, which PowerShell writes (``> file``, ``Tee-Object``)."""
    chunk = stream.read(BLOCK_BYTES)
    encoding = _utf16(chunk)
    decode = codecs.getincrementaldecoder(encoding)(errors="replace").decode if encoding else None
    while chunk:
        yield chunk if decode is None else decode(chunk).encode("utf-8", "replace")
        chunk = stream.read(BLOCK_BYTES)


def _utf16(head: bytes) -> str | None:
    """The byte order of UTF-16, where a text is in it: its Latin characters have a zero on one side, and no other."""
    even, odd = (head[start:4096:2].count(0) for start in (0, 1))
    several = max(len(head[:4096]) // 20, 1)
    if odd >= several and even * 10 < odd:
        return "utf-16-le"
    return "utf-16-be" if even >= several and odd * 10 < even else None


def blocks(stream: BinaryIO) -> Iterator[Block]:
    """The log in blocks of whole lines. A line longer than a block is kept to its first block."""
    number, rest, skipping = 1, b"", False
    for chunk in _chunks(stream):
        data = rest + chunk
        cut = data.rfind(b"\n")
        if cut < 0 and len(data) < 2 * BLOCK_BYTES:
            rest = data
            continue
        if cut < 0:  # a line without end: its first part is seen, the rest passed over up to the line feed
            if not skipping:
                yield Block(number, _COMMANDS.sub(b"", data[:BLOCK_BYTES]))
            rest, skipping = b"", True
            continue
        whole, rest = data[:cut], data[cut + 1 :]
        if skipping:
            _, _, whole = whole.partition(b"\n")
            number, skipping = number + 1, False
            if not whole:
                continue
        yield Block(number, _COMMANDS.sub(b"", whole) if b"\x1b" in whole else whole)
        number += whole.count(b"\n") + 1
    if rest and not skipping:
        yield Block(number, _COMMANDS.sub(b"", rest))
