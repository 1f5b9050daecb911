"""The event log of a run: one JSON line per log, alarm, save and evaluation, appended and flushed."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.files import json_safe
from hf_recipes.core.ranks import rank

SCHEMA = 1
_TAIL_BYTES = 1 << 16
KINDS = ("begin", "overfit", "log", "eval", "generate", "save", "verify", "alarm", "note", "end")


class EventLog:
    """Appends events of one process to ``events.jsonl`` (rank 0) or ``events.rankN.jsonl``.

    Every line carries ``schema``, ``attempt`` (1 for a fresh run, +1 for each resume), ``rank``, ``time`` (Unix
    seconds), ``kind`` (one of `KINDS`), ``step`` and the values given.
    """

    def __init__(self, output_dir: Path, process_rank: int) -> None:
        name = "events.jsonl" if process_rank == 0 else f"events.rank{process_rank}.jsonl"
        self.path = output_dir / name
        self.rank = process_rank
        self.attempt = 1
        self.start_attempt()

    def start_attempt(self) -> None:
        """Number what follows as the next start of the run: one more than the last in the file."""
        self.attempt = 1 + _last_attempt(self.path)
        self._torn = _ends_within_a_line(self.path)

    def write(self, kind: str, step: int, **values: Any) -> None:
        """Append one event and flush it, so that a killed run keeps what it saw."""
        assert kind in KINDS, kind
        event = {
            "schema": SCHEMA,
            "attempt": self.attempt,
            "rank": self.rank,
            "time": time.time(),
            "kind": kind,
            "step": step,
            **values,
        }
        line = json.dumps(json_safe(event), ensure_ascii=False, allow_nan=False) + "\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write("\n" + line if self._torn else line)  # behind half a line, this one would be lost with it
            self._torn = False
        except OSError:  # a full disk may have taken a part of it
            self._torn = True
            raise


def absent_rank(events: Iterable[Mapping[str, Any]], attempt: int) -> str:
    """What the last alarm of an attempt says of a rank that is gone; empty where none is. Without it the others cannot
    go on, and those that lived may have had no time for more."""
    gone = (event for event in events if event.get("verdict") in ("gone", "silent"))
    said = [str(event.get("message", "")) for event in gone if event.get("attempt", 1) == attempt]
    return said[-1] if said else ""


@functools.cache
def _event_log(output_dir: str, process_rank: int) -> EventLog:
    return EventLog(Path(output_dir), process_rank)


def event_log(output_dir: str | Path) -> EventLog:
    """The event log of this process for a run; one object per directory, so all callbacks share an attempt number."""
    return _event_log(str(Path(output_dir).absolute()), rank())


def read_events(output_dir: Path) -> list[dict[str, Any]]:
    """All events of all ranks by time. A last line cut short by a kill is passed over."""
    files = [output_dir / "events.jsonl", *sorted(output_dir.glob("events.rank*.jsonl"))]
    return sorted((event for file in files for event in read_event_lines(file)), key=_time_of)


def _time_of(event: dict[str, Any]) -> float:
    """A line edited by hand may hold anything; it must not hide the others."""
    value = event.get("time")
    return float(value) if isinstance(value, (int, float)) else 0.0


def _last_attempt(path: Path) -> int:
    """The attempt of the last whole line, 0 without one. Reads backwards: a log of a million lines is no matter."""
    if not path.is_file():
        return 0
    with open(path, "rb") as file:
        end = file.seek(0, os.SEEK_END)
        for size in (_TAIL_BYTES, end):
            file.seek(max(0, end - size))
            for line in reversed(file.read(size).split(b"\n")):
                attempt = _attempt_of(line)
                if attempt is not None:
                    return attempt
    return 0


def _attempt_of(line: bytes) -> int | None:
    try:
        attempt = json.loads(line).get("attempt")
    except (ValueError, AttributeError):
        return None
    return attempt if isinstance(attempt, int) else None


def _ends_within_a_line(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                return False
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"
    except OSError:
        return False


def read_event_lines(path: Path) -> list[dict[str, Any]]:
    """The events of one file in the order they were written; a line cut short by a kill is passed over."""
    if not path.is_file():
        return []
    events = []
    # Not splitlines(), which would also break at U+2028 and others that stand inside texts.
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            events.append(event)
    return events
