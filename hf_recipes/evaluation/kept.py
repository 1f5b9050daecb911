"""The answers kept on disk: ``RUN/evaluation/SIDE.jsonl``, a header and a line per row, appended as batches finish.

Whatever was answered before, by one process or several, is not asked again, as long as the header is the same. A
process that is killed loses the batch it was at.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.files import json_safe, write_text
from hf_recipes.core.log import logger

SCHEMA = 1
Line = dict[str, Any]
_ANSWER = {"answer", "prompt", "tokens", "ended", "seconds"}
_NEEDED: dict[str, set[str]] = {
    "domain": _ANSWER,
    "instructions": _ANSWER,
    "general": {"nats", "tokens"},
    "choices": {"choices", "answer_index", "loglikelihoods", "scores"},
    "tasks": {"results"},
    "latency": {"first_ms", "token_ms"},
}


@dataclass(frozen=True)
class KeptAnswers:
    """The answer file of one model.

    Args:
        path: ``SIDE.jsonl``; what several processes write lies beside it, as ``SIDE.rankN.jsonl``.
        header: what the answers belong to (see `identity`); answers under another one are not used.
    """

    path: Path
    header: Mapping[str, Any]

    def collect(self, *, fresh: bool = False) -> dict[str, Line]:
        """Bring what was answered before into one file, and return it by row key.

        A last line cut short by a kill is dropped; answers of another model or other settings are, too. Both are told.

        Args:
            fresh: drop what is there.
        """
        rank_files = sorted(self.path.parent.glob(f"{self.path.stem}.rank*.jsonl"))
        found: dict[str, Line] = {}
        for file in [self.path, *rank_files] if not fresh else []:
            found |= self._usable(file)
        self.write(found.values())
        for file in rank_files:
            file.unlink()
        return found

    def read(self) -> dict[str, Line]:
        """What the one file holds, by row key, without changing anything."""
        return self._usable(self.path)

    def append(self, lines: Iterable[Mapping[str, Any]], rank: int | None = None) -> None:
        """Add lines at once and see them to disk; with a rank, to that rank's own file."""
        path = self.path if rank is None else self.path.with_name(f"{self.path.stem}.rank{rank}.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [_text(line) for line in lines]
        if not path.exists():
            texts.insert(0, _text(self._header()))
        with open(path, "a", encoding="utf-8") as file:
            file.write("".join(texts))
            file.flush()
            os.fsync(file.fileno())

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """The file anew, whole or not at all, with these lines only."""
        write_text(self.path, "".join(map(_text, [self._header(), *lines])))

    def _header(self) -> Line:
        return {"schema": SCHEMA, "part": "header", **json_safe(dict(self.header))}

    def _usable(self, file: Path) -> dict[str, Line]:
        lines = read_lines(file)
        if not lines:
            return {}
        if lines[0] != self._header():
            what = _difference(lines[0], self._header())
            logger.warning(f"{file}: {len(lines) - 1} answers belong to {what}: they are not used, and asked anew.")
            return {}
        usable = {line["key"]: line for line in lines[1:] if _is_whole(line)}
        if damaged := sum(not _is_whole(line) for line in lines[1:]):
            logger.warning(f"{file}: {damaged} line(s) are no whole answers: they are dropped, and asked anew.")
        return usable


def read_lines(file: Path) -> list[Line]:
    """The lines of an answer file; empty where it is not there. What is not JSON is dropped, and that is told."""
    if not file.is_file():
        return []
    lines, torn = [], 0
    for text in file.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            value = json.loads(text) if text.strip() else None
        except ValueError:
            value, torn = None, torn + 1
        if isinstance(value, dict):
            lines.append(value)
    if torn:
        logger.warning(f"{file}: {torn} line(s) cut short, as by a kill, are dropped; those rows are asked anew.")
    return lines


def _is_whole(line: Mapping[str, Any]) -> bool:
    """Whether a line has what its part is measured by; somebody may have edited the file."""
    return isinstance(line.get("key"), str) and _NEEDED.get(str(line.get("part")), set()) <= line.keys()


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """In words, what two headers do not share."""
    if old.get("part") != "header" or old.get("schema") != new["schema"]:
        return "another version of this file"
    if old.get("models") != new.get("models"):
        return "another model"
    before, now = old.get("asked") or {}, new.get("asked") or {}
    keys: Sequence[str] = sorted(key for key in {*before, *now} if before.get(key) != now.get(key))
    return f"other settings ({', '.join(f'{key} {before.get(key)}, now {now.get(key)}' for key in keys)})"


def _text(line: Mapping[str, Any]) -> str:
    return json.dumps(json_safe(dict(line)), ensure_ascii=False, allow_nan=False) + "\n"
