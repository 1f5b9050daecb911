"""One cause of what is wrong with a run: how much it explains, what speaks for it, what to change."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

SPOILS = 50
"""From this weight on a run is spoilt or did not come to its end; below it is worse than it could be."""


@dataclass(frozen=True)
class Cause:
    """A cause, as it is told.

    Attributes:
        name: of its kind.
        weight: 0 to 100, by which causes are ranked: a run that cannot go on stands before one that learns badly, and
            what explains other causes before those.
        sentence: what it is.
        change: what to change, in recipe keys and values.
        evidence: what speaks for it: steps and numbers.
    """

    name: str
    weight: int
    sentence: str
    change: str
    evidence: tuple[str, ...] = ()

    def as_values(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)
