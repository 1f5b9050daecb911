"""Whether an answer keeps the form it should: judged by its reference, or by plain signs of a model gone wrong."""

from __future__ import annotations

import json
from typing import Any

_LOOP_TOKENS = 4
_LOOP_TIMES = 5

Judgement = tuple[bool | None, str]


def judge_answer(answer: str, reference: str | None) -> Judgement:
    """Whether `answer` is well-formed (None: nothing says what its form should be), and why not.

    Empty answers and answers that repeat themselves at their end are not. Where the reference is a JSON object the
    answer must be one too, with the same keys; where it is another JSON container, JSON.
    """
    if not answer.strip():
        return False, "empty"
    if loop := repeated_end(answer):
        return False, f"repeats {loop!r}"
    wanted = _container(reference)
    if wanted is None:
        return None, ""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError) as error:
        return False, f"not JSON: {error}"
    if isinstance(wanted, dict):
        if not isinstance(value, dict):
            return False, "not a JSON object"
        if missing := [key for key in wanted if key not in value]:
            return False, f"without {', '.join(missing)}"
        if surplus := [key for key in value if key not in wanted]:
            return False, f"with {', '.join(surplus)} too many"
    return True, ""


def repeated_end(answer: str) -> str:
    """The words that the end of `answer` repeats at least five times in a row (at most four of them), or ""."""
    words = answer.split()
    for length in range(1, _LOOP_TOKENS + 1):
        last = words[-length:]
        if len(words) >= length * _LOOP_TIMES and words[-length * _LOOP_TIMES :] == last * _LOOP_TIMES:
            return " ".join(last)
    return ""


def _container(text: str | None) -> Any:
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, (dict, list)) else None
