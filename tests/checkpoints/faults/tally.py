"""What came of the faults, counted into a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

FOUND = "found"
UNDETECTED = "undetected"
REFUSED = "good refused"
STUCK = "could not go on"
SKIPPED = "skipped"
_BAD = (UNDETECTED, REFUSED, STUCK)


@dataclass(frozen=True)
class Outcome:
    """What came of one fault; `said` is the evidence where the verdict is a bad one, else what may be of interest."""

    kind: str
    fault: str
    verdict: str
    said: str = ""
    seconds: float = 0.0

    @property
    def bad(self) -> bool:
        return self.verdict in _BAD


def count(outcomes: Iterable[Outcome], verdict: str) -> int:
    """How many outcomes have this verdict."""
    return sum(outcome.verdict == verdict for outcome in outcomes)


def table(outcomes: list[Outcome]) -> str:
    """A Markdown table, one row a kind of fault in the order met, and a row of sums."""
    kinds = dict.fromkeys(outcome.kind for outcome in outcomes)
    head = (
        "| kind of fault | faults | found, or went on from a good one | undetected | good refused | could not go on "
        "| seconds |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    groups = [(kind, [outcome for outcome in outcomes if outcome.kind == kind]) for kind in kinds]
    return "\n".join([head, *(_row(kind, group) for kind, group in [*groups, ("**all**", outcomes)])])


def _row(kind: str, group: list[Outcome]) -> str:
    met = [outcome for outcome in group if outcome.verdict != SKIPPED]
    if not met and group:
        return f"| {kind} | skipped: {group[0].said} | | | | | |"
    counts = [len(met), *(count(met, verdict) for verdict in (FOUND, *_BAD))]
    return f"| {kind} | {' | '.join(map(str, counts))} | {sum(outcome.seconds for outcome in group):.0f} |"


def plain(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """The outcomes as data for JSON."""
    return [vars(outcome) for outcome in outcomes]
