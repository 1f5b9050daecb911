"""Follows the tracebacks of a log, of all ranks at once: where an error came from, and which ones nobody explained."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Plain, and as `rich` draws it in a box.
_FRAME = re.compile(r'^\W*File "(?P<file>[^"]+)", line \d+, in (?P<function>\S+)')
_RICH_FRAME = re.compile(r"^\W*(?P<file>\S+\.py):\d+ in (?P<function>[\w<>]+)")
_ERROR = re.compile(
    r"^(?:[A-Za-z_][\w]*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout|Expired)\b(?::|$)"
)
_BEGINS = "Traceback (most recent call last)"
_GOES_ON = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
_MOST_FRAMES, _MOST_ERRORS, _MOST_RANKS = 400, 50, 2048
_NEAR_LINES = 20  # a long message tells what it is within so many


@dataclass(frozen=True)
class ErrorSeen:
    """The last line of a traceback: where it stands, whose it is, its text."""

    line: int
    rank: int | None
    text: str


@dataclass
class _Thread:
    """What one rank is in the middle of."""

    frames: list[tuple[str, str]] = field(default_factory=list)
    pending: list[ErrorSeen] = field(default_factory=list)
    within: bool = False
    goes_on: bool = False
    known: bool = False
    last_known_line: int = -_NEAR_LINES


class Tracebacks:
    """Fed line by line; told which lines were recognised.

    Attributes:
        unexplained: errors that no known message explained, the first of them; the last one is `last`.
    """

    def __init__(self) -> None:
        self.unexplained: list[ErrorSeen] = []
        self.last: ErrorSeen | None = None
        self._threads: dict[int | None, _Thread] = {}

    def see(self, line: int, rank: int | None, text: str) -> None:
        """One line, without its rank's mark."""
        thread = self._thread(rank)
        if _BEGINS in text:
            self._begin(thread)
        elif text.strip() and any(words in text for words in _GOES_ON):
            thread.goes_on = True
        elif found := _FRAME.match(text) or (_RICH_FRAME.match(text) if thread.within else None):
            thread.within = True  # also where the log begins in the middle of it
            if len(thread.frames) < _MOST_FRAMES:
                thread.frames.append((found["file"], found["function"]))
        elif thread.within and _ERROR.match(text):
            thread.within = False
            if not thread.known and line - thread.last_known_line > 0:
                thread.pending.append(ErrorSeen(line, rank, text[:300]))

    def explained(self, line: int, rank: int | None, *, only_this: bool = False) -> None:
        """A known message stands at this line: it explains the error just before it and what that is chained to.

        Args:
            line, rank: where it stands and whose it is.
            only_this: it explains no other line than its own (a launcher's account).
        """
        thread = self._thread(rank)
        if only_this:
            thread.pending = [error for error in thread.pending if error.line != line]
            return
        near = thread.within or all(line - error.line <= _NEAR_LINES for error in thread.pending)
        if near:
            thread.pending.clear()
            thread.known, thread.last_known_line = True, line

    def frames(self, rank: int | None) -> list[tuple[str, str]]:
        """(file, function) of the traceback that this rank's last words belong to, outermost first."""
        return self._thread(rank).frames

    def close(self) -> None:
        """The log has ended."""
        for thread in self._threads.values():
            self._give_up(thread)
        self.unexplained.sort(key=lambda error: error.line)

    def _thread(self, rank: int | None) -> _Thread:
        if rank not in self._threads and len(self._threads) >= _MOST_RANKS:
            rank = None
        return self._threads.setdefault(rank, _Thread())

    def _begin(self, thread: _Thread) -> None:
        if not thread.goes_on:
            self._give_up(thread)
            thread.known = False
        thread.frames.clear()
        thread.within, thread.goes_on = True, False

    def _give_up(self, thread: _Thread) -> None:
        """What is pending is explained no more."""
        for error in thread.pending:
            if self.last is None or error.line > self.last.line:
                self.last = error
            if len(self.unexplained) < _MOST_ERRORS:
                self.unexplained.append(error)
        thread.pending.clear()
