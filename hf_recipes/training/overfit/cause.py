"""What can be broken, as a clause with the numbers that show it and a clause that says what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["data", "learning_rate", "nothing_trainable", "precision", "unknown"]


@dataclass(frozen=True)
class Cause:
    """Something broken.

    Attributes:
        kind: where.
        what: what it is, with the numbers that show it; a clause.
        cure: what to change; a clause.
    """

    kind: Kind
    what: str
    cure: str
