"""What became of every row: read, dropped or changed (why, with examples), cut, shortened, kept; never silently."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.core.errors import UserError

EXAMPLES_PER_REASON = 3
BAD_ROWS = ("drop", "fail")
_OF_LINES = re.compile(r"\.(jsonl|ndjson|csv|tsv|txt)(\.\w+)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Place:
    """Where a row lies: its file and its row there (1-based line of JSONL and CSV, index in arrays and Parquet)."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}:{self.row}"

    @property
    def told(self) -> str:
        """For a sentence: ``rows.csv, line 14``, or ``rows.json, row 13 (from 0)`` where rows are not lines."""
        return (
            f"{self.file}, line {self.row}" if _OF_LINES.search(self.file) else f"{self.file}, row {self.row} (from 0)"
        )

    @classmethod
    def parse(cls, text: str) -> Place:
        """The inverse of `str`, for the column ``row_id``."""
        file, _, row = text.rpartition(":")
        return cls(file, int(row))


class BadRow(Exception):
    """A row that cannot be used.

    Args:
        reason: a phrase that is the same for all rows with this fault, so that they can be counted together.
        detail: what is particular to this row.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason = reason
        self.detail = detail

    def __reduce__(self) -> tuple[type[BadRow], tuple[str, str]]:
        """Keep the two apart when the fault is sent to another process."""
        return BadRow, (self.reason, self.detail)


@dataclass
class Tally:
    """How often something happened, by what it was, with the first few places of each."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def add(self, what: str, place: Place, detail: str = "") -> None:
        """Count one, keeping file, row and detail of the first few."""
        self.counts[what] += 1
        kept = self.examples.setdefault(what, [])
        if len(kept) < EXAMPLES_PER_REASON:
            kept.append({"file": place.file, "row": place.row, **({"detail": detail} if detail else {})})

    def merge(self, other: Tally) -> None:
        """Add what `other` counted, which came after."""
        self.counts.update(other.counts)
        for what, places in other.examples.items():
            kept = self.examples.setdefault(what, [])
            kept.extend(places[: EXAMPLES_PER_REASON - len(kept)])

    def phrase(self) -> str:
        """Everything counted as one phrase, the most frequent first, with the first place of each."""
        return "; ".join(
            f"{count} × {what} (first: {Place(self.examples[what][0]['file'], self.examples[what][0]['row']).told})"
            for what, count in self.counts.most_common()
        )

    def as_dict(self) -> dict[str, Any]:
        """``{what: {"count", "examples"}}``, the most frequent first."""
        return {what: {"count": count, "examples": self.examples[what]} for what, count in self.counts.most_common()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Tally:
        """The inverse of `as_dict`."""
        return cls(
            Counter({what: entry["count"] for what, entry in values.items()}),
            {what: list(entry["examples"]) for what, entry in values.items()},
        )


@dataclass
class Ledger:
    """The account of one source, or of a block of it. Always ``read == kept + dropped.counts.total()``.

    `samples` counts what the kept rows became: as many as there are rows unless long ones are split; `lost_answers`
    counts answers left out of split rows.
    """

    source: str
    bad_rows: str = "drop"
    read: int = 0
    kept: int = 0
    samples: int = 0
    truncated: int = 0
    shortened: int = 0
    lost_answers: int = 0
    dropped: Tally = field(default_factory=Tally)
    changes: Tally = field(default_factory=Tally)
    notes: Tally = field(default_factory=Tally)

    def bad(self, place: Place, fault: BadRow) -> None:
        """Count a faulty row as dropped; under ``bad_rows: fail`` raise `UserError` that names it instead."""
        if self.bad_rows == "fail":
            raise UserError(f"{place.told}: {fault}; correct the row or set bad_rows: drop.")
        self.drop(place, fault)

    def drop(self, place: Place, fault: BadRow) -> None:
        """Count a row as dropped, keeping the first few of each reason by file and row."""
        self.dropped.add(fault.reason, place, fault.detail)

    def changed(self, place: Place, rule: str, detail: str = "") -> None:
        """Count a row that a cleaning rule altered."""
        self.changes.add(rule, place, detail)

    def note(self, place: Place, what: str, detail: str = "") -> None:
        """Count something seen in a row that is left as it is."""
        self.notes.add(what, place, detail)

    def reasons(self) -> str:
        """The drop reasons with their counts, the most frequent first, as one phrase with the first row of each."""
        return self.dropped.phrase()

    def merge(self, other: Ledger) -> None:
        """Add the account of a later block."""
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in _TALLIES:
            getattr(self, name).merge(getattr(other, name))

    def as_dict(self) -> dict[str, Any]:
        """The account as it stands in ``data.json``."""
        return {name: getattr(self, name) for name in _NUMBERS} | {
            ("changed" if name == "changes" else name): getattr(self, name).as_dict() for name in _TALLIES
        }

    @classmethod
    def from_dict(cls, source: str, values: dict[str, Any]) -> Ledger:
        """The inverse of `as_dict`."""
        ledger = cls(source)
        for name in _NUMBERS:
            setattr(ledger, name, values[name])
        for name in _TALLIES:
            setattr(ledger, name, Tally.from_dict(values["changed" if name == "changes" else name]))
        return ledger


_NUMBERS = ("read", "kept", "samples", "truncated", "shortened", "lost_answers")
_TALLIES = ("dropped", "changes", "notes")
