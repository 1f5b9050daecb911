"""The pure rule behind `NonFiniteGuard`: what to do with a step whose loss or gradient is not finite."""

from __future__ import annotations

from typing import Any, Literal

Decision = Literal["go", "skip", "restore", "stop"]


class BadSteps:
    """Counts bad steps, and decides on each.

    Args:
        limit: so many of them in a row mean stop (1: at the first).
        max_restores: go back so many times in the whole run, then stop; None: skip instead, up to `limit` in a row.

    Attributes:
        files: bad batches written so far, kept here so that a resumed run goes on counting.
    """

    def __init__(self, limit: int, max_restores: int | None = None) -> None:
        self.limit, self.max_restores = limit, max_restores
        self.in_a_row = self.total = self.restores = self.files = 0

    def judge(self, bad: bool, limit: int | None = None, *, weights_bad: bool = False) -> Decision:
        """Decide on one step.

        Args:
            limit: replaces the rule's own for this step, which then is skipped below it and never means restore.
            weights_bad: the weights themselves are not finite, so that skipping cannot help.
        """
        if not bad:
            self.in_a_row = 0
            return "go"
        self.in_a_row += 1
        self.total += 1
        if limit is None and self.max_restores is not None:
            if self.restores >= self.max_restores:
                return "stop"
            self.restores += 1
            return "restore"
        return "stop" if weights_bad or self.in_a_row >= (limit or self.limit) else "skip"

    def state_dict(self) -> dict[str, Any]:
        """The counts."""
        return {"in_a_row": self.in_a_row, "total": self.total, "restores": self.restores, "files": self.files}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the counts of `state_dict`; those that an older version did not keep start at 0."""
        self.in_a_row, self.total = state["in_a_row"], state["total"]
        self.restores, self.files = state.get("restores", 0), state.get("files", 0)
