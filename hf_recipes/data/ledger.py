"""What became of every row: read, dropped (by reason, with examples), truncated, shortened, kept. Nothing is silent."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.core.errors import UserError

EXAMPLES_PER_REASON = 3
BAD_ROWS = ("drop", "fail")


@dataclass(frozen=True)
class Place:
    """Where a row lies: its file and its row there (1-based line of JSONL and CSV, index in arrays and Parquet)."""

    file: str
    row: int

    def __str__(self) -> str:
        return f"{self.file}:{self.row}"


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


@dataclass
class Ledger:
    """The account of one source. Always ``read == kept + sum of dropped``."""

    source: str
    bad_rows: str = "drop"
    read: int = 0
    kept: int = 0
    truncated: int = 0
    shortened: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def bad(self, place: Place, fault: BadRow) -> None:
        """Count a faulty row as dropped; under ``bad_rows: fail`` raise `UserError` that names it instead."""
        if self.bad_rows == "fail":
            raise UserError(f"{place.file}, row {place.row}: {fault}; correct the row or set bad_rows: drop.")
        self.drop(place, fault)

    def drop(self, place: Place, fault: BadRow) -> None:
        """Count a row as dropped, keeping the first few of each reason by file and row."""
        self.dropped[fault.reason] += 1
        examples = self.examples.setdefault(fault.reason, [])
        if len(examples) < EXAMPLES_PER_REASON:
            detail = {"detail": fault.detail} if fault.detail else {}
            examples.append({"file": place.file, "row": place.row, **detail})

    def reasons(self) -> str:
        """The drop reasons with their counts, the most frequent first, as one phrase with the first row of each."""
        phrases = []
        for reason, count in self.dropped.most_common():
            first = self.examples[reason][0]
            phrases.append(f"{count} × {reason} (first: {first['file']}, row {first['row']})")
        return "; ".join(phrases)

    def as_dict(self) -> dict[str, Any]:
        """The account as it stands in ``data.json``."""
        return {
            "read": self.read,
            "dropped": {
                reason: {"count": count, "examples": self.examples[reason]}
                for reason, count in self.dropped.most_common()
            },
            "truncated": self.truncated,
            "shortened": self.shortened,
            "kept": self.kept,
        }
