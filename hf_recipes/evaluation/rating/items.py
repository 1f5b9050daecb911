"""One thing to rate: a prompt and the answers of two models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RatingItem:
    """A prompt with two answers to compare.

    Args:
        number: the row's line in the evaluation file; unique.
        prompt: as the rater reads it.
        reference: the answer of the file; empty where there is none.
        answers: two, by the name of the model (side).
        stratum: what the sample is balanced by, such as the source.
    """

    number: int
    prompt: str
    reference: str
    answers: Mapping[str, str]
    stratum: str = ""
