"""Values of settings, held against what they may be before there is a model; pure checks with one sentence each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from hf_recipes.core.errors import UserError


def whole_number(key: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """`value` as int; 8.0 is 8.

    Raises:
        UserError: it is no whole number (True is none), or outside of `low` and `high`.
    """
    plain = _is_number(value) and math.isfinite(value) and value == int(value)
    if not plain or (low is not None and value < low) or (high is not None and value > high):
        between = "" if low is None else f" of {low} or more" if high is None else f" from {low} to {high}"
        raise UserError(f"{key} is {value!r}: give a whole number{between}.")
    return int(value)


def positive_number(key: str, value: Any) -> int | float:
    """`value` as int or float.

    Raises:
        UserError: it is no finite number above 0.
    """
    if not _is_number(value) or not 0 < value < math.inf:
        raise UserError(f"{key} is {value!r}: give a finite number above 0.")
    return int(value) if isinstance(value, Integral) else float(value)


def probability(key: str, value: Any) -> float:
    """`value` as float.

    Raises:
        UserError: it is no number of 0 or more, below 1.
    """
    if not _is_number(value) or not 0 <= value < 1:
        raise UserError(f"{key} is {value!r}: give a probability of 0 or more, below 1.")
    return float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def truth(key: str, value: Any) -> bool:
    """`value` itself.

    Raises:
        UserError: it is neither True nor False; the text "false" would count as true.
    """
    if not isinstance(value, bool):
        raise UserError(f"{key} is {value!r}: give true or false.")
    return value


def names(key: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """`value` as names; a plain text is one name, None is none.

    Raises:
        UserError: it is no list of texts, or one of them is empty.
    """
    listed = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(listed, (Sequence, set, frozenset)) or not all(isinstance(name, str) for name in listed):
        raise UserError(f"{key} is {value!r}: give a name or a list of names.")
    if "" in listed:
        raise UserError(f"{key}: a name is empty: give the module's name, or leave the key out.")
    return tuple(listed)
