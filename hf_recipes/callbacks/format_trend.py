"""The pure detector behind `GenerationWatch`: the share of well-formed answers against its best."""

from __future__ import annotations

from typing import Any

_TIMES = 2


class FormatTrend:
    """Counts evaluations in a row whose share is at most half of the best before; the second of them is an alarm."""

    def __init__(self) -> None:
        self.best = 0.0
        self.low = 0

    def judge(self, share: float) -> bool:
        """Take one evaluation's share (0 to 1); True once for each unbroken series of low ones."""
        self.low = self.low + 1 if self.best and share <= self.best / 2 else 0
        self.best = max(self.best, share)
        return self.low == _TIMES

    def state_dict(self) -> dict[str, Any]:
        """Everything seen, as JSON-safe data."""
        return dict(vars(self))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up what `state_dict` gave."""
        vars(self).update(state)
