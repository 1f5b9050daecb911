"""What people rate: the criteria, and the scale they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_recipes.core.errors import UserError

LOWEST, HIGHEST = 1, 5

DEFAULT_CRITERIA: dict[str, str] = {
    "relevance": "Does it answer what was asked, all of it and nothing else?",
    "factual accuracy": "Is what it says true, as far as you can tell?",
    "fluency": "Is it well written?",
    "format": "Does it have the form that was asked for?",
}


def criteria_from(value: Any) -> dict[str, str]:
    """Names and questions from a recipe's ``evaluation.rating.criteria``; the four defaults where it gives none.

    Args:
        value: None, a list of names (of which the default ones keep their questions), or names with questions.

    Raises:
        UserError: it is none of them, it is empty, names one twice, or a name is not a short text.
    """
    if value is None:
        return dict(DEFAULT_CRITERIA)
    if isinstance(value, Mapping):
        criteria = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        criteria = {name: DEFAULT_CRITERIA.get(name, "") if isinstance(name, str) else "" for name in value}
    else:
        raise UserError(f"evaluation.rating.criteria: {value!r} is neither a list of names nor names with questions.")
    if not criteria:
        raise UserError("evaluation.rating.criteria is empty: leave it out for the four default criteria.")
    for name, question in criteria.items():
        if not isinstance(name, str) or not 0 < len(name.strip()) <= 60 or not isinstance(question, str):
            raise UserError(f"evaluation.rating.criteria: {name!r} must be a name of at most 60 characters, a text.")
    stripped = {name.strip(): question for name, question in criteria.items()}
    if len(stripped) < len(value):
        raise UserError("evaluation.rating.criteria names one criterion twice: leave one out.")
    return stripped
