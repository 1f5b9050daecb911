"""Text of others on a terminal: what it would obey is shown, not sent."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Any

# Each control character is shown by its Unicode picture instead.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)

_PLAIN = str.maketrans({"×": "x", "–": "-", "…": "...", "→": "->", "−": "-"})


def printable(text: str) -> str:
    """The text without anything that a terminal would take as a command; line breaks and tabs stay."""
    return text.translate(_PICTURES)


def print_drawn(render: Callable[[bool], str], characters: str) -> None:
    """Print a drawing of text, plainer where the terminal's encoding lacks the characters it is drawn with.

    Args:
        render: takes whether it must be plain.
        characters: that it is drawn with.
    """
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"  # a stdout that is closed is None
    try:
        characters.encode(encoding)
        print(render(False))
    except UnicodeEncodeError:
        print(render(True).translate(_PLAIN).encode(encoding, "replace").decode(encoding))


def outlive_reader() -> None:
    """From here on standard output may lose its reader (`| head`) or lack a character without an error: what a verb
    finds out, and its exit code, do not depend on that. Without effect where it is not the process's own stream."""
    stream = sys.stdout
    if stream is None or stream is not sys.__stdout__ or not isinstance(stream, io.TextIOWrapper):
        return
    stream.flush()
    raw: Any = getattr(stream.buffer, "raw", stream.buffer)  # without a buffer under PYTHONUNBUFFERED
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(_Outliving(raw)),
        encoding=stream.encoding,
        errors="replace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Outliving(io.RawIOBase):
    """A file that goes on into nothing when its reader has left, and child processes with it."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._file.isatty()

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: Any) -> int | None:
        try:
            return self._file.write(data)
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return memoryview(data).nbytes
