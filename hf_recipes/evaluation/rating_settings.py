"""The `rating:` part of a recipe's `evaluation:`: what people are asked about the answers, and about how many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.rating.criteria import criteria_from

SAMPLES = 40


@dataclass(frozen=True)
class RatingSettings:
    """What a rating sheet asks.

    Args:
        criteria: names and questions, by which each answer is judged.
        samples: rows on the sheet.
    """

    criteria: Mapping[str, str] = field(default_factory=lambda: criteria_from(None))
    samples: int = SAMPLES

    @classmethod
    def from_dict(cls, value: Any) -> RatingSettings:
        """From the recipe's mapping; ``true`` for the defaults.

        Raises:
            UserError: an unknown key or a value of the wrong kind.
        """
        if value is True:
            return cls()
        if not isinstance(value, Mapping) or set(value) - {"criteria", "samples"}:
            raise UserError(
                f"evaluation.rating: {value!r} is not of the form {{criteria: [first, …], samples: {SAMPLES}}}."
            )
        samples = SAMPLES if value.get("samples") is None else value["samples"]
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise UserError(f"evaluation.rating.samples: {samples!r} is not a positive whole number.")
        return cls(criteria_from(value.get("criteria")), samples)
