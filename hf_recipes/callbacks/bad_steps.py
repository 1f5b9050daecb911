"""The pure rule behind `NonFiniteGuard`: what to do with a step whose loss or gradient is not finite."""

from __future__ import annotations

from typing import Any, Literal

Decision = Literal["go", "skip", "stop"]


class BadSteps:
    """Counts bad steps; `limit` of them in a row mean stop (1: at the first)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_a_row = 0
        self.total = 0

    def judge(self, bad: bool, limit: int | None = None) -> Decision:
        """Decide on one step; `limit` replaces the rule's own for this step."""
        if not bad:
            self.in_a_row = 0
            return "go"
        self.in_a_row += 1
        self.total += 1
        return "stop" if self.in_a_row >= (limit or self.limit) else "skip"

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"in_a_row": self.in_a_row, "total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the counts of `state_dict`."""
        self.in_a_row, self.total = state["in_a_row"], state["total"]
