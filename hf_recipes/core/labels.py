"""The label of tokens that are read but not predicted, as PyTorch's cross entropy has it."""

from __future__ import annotations

from collections.abc import Sequence

IGNORED_LABEL = -100


def last_trained_stretch(labels: Sequence[int]) -> tuple[int, int] | None:
    """Begin and end of the last unbroken stretch of trained tokens; None where there is none."""
    end = len(labels)
    while end and labels[end - 1] == IGNORED_LABEL:
        end -= 1
    start = end
    while start and labels[start - 1] != IGNORED_LABEL:
        start -= 1
    return (start, end) if end else None
