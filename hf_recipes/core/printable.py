"""Text of others on a terminal: what it would obey is shown, not sent."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

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
    encoding = sys.stdout.encoding or "ascii"
    try:
        characters.encode(encoding)
        print(render(False))
    except UnicodeEncodeError:
        print(render(True).translate(_PLAIN).encode(encoding, "replace").decode(encoding))


def print_to_pipe(text: str) -> None:
    """Print, whether or not anybody reads to the end (`| head`): what was found out does not depend on that."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the exit would meet the pipe once more
