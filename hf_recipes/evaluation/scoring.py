"""Judging answers against references: pure functions on strings and JSON values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol


class SchemaValidator(Protocol):
    """What scoring needs of a compiled JSON Schema; `jsonschema.Draft202012Validator` is one."""

    def is_valid(self, instance: Any) -> bool:
        """Whether `instance` fits the schema."""


@dataclass(frozen=True)
class Verdict:
    """What one answer got right.

    ``parses`` and ``fits_schema`` are None where the question does not arise (a reference that is plain text, a suite
    without a schema); ``fields`` holds right or wrong for each field of a reference that is a JSON object.
    """

    exact: bool
    parses: bool | None = None
    fits_schema: bool | None = None
    fields: dict[str, bool] | None = None


@dataclass(frozen=True)
class DomainScores:
    """Shares (0 to 1) over `rows` answers; None where no row asks the question."""

    rows: int
    exact: float | None
    parses: float | None
    fits_schema: float | None
    fields_right: float | None
    by_field: dict[str, float]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def parse_json(text: str) -> Any:
    """Return the value of `text`, which must be one JSON value and nothing else but white space around it.

    Raises:
        ValueError: it is not; ``NaN`` and ``Infinity``, which Python's reader accepts, are not JSON either.
    """
    try:
        return json.loads(text.strip(), parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_equal(left: Any, right: Any) -> bool:
    """Equality of JSON values: ``1`` equals ``1.0``, but ``true`` is not ``1``; keys are compared without order."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(json_equal(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(json_equal, left, right))
    return bool(left == right)


def json_reference(reference: str) -> dict[str, Any] | list[Any] | None:
    """The value of a reference that asks for JSON (an object or an array); None for a plain-text reference.

    A bare number or word in quotes also parses as JSON, but says nothing about the format asked for.
    """
    try:
        value = parse_json(reference)
    except ValueError:
        return None
    return value if isinstance(value, (dict, list)) else None


def judge(answer: str, reference: str, validator: SchemaValidator | None = None) -> Verdict:
    """Judge one answer. A JSON reference is compared as a value, any other as text without the white space around."""
    expected = json_reference(reference)
    if expected is None:
        return Verdict(exact=answer.strip() == reference.strip())
    try:
        value, parses = parse_json(answer), True
    except ValueError:
        value, parses = None, False
    return Verdict(
        exact=parses and json_equal(value, expected),
        parses=parses,
        fits_schema=None if validator is None else parses and bool(validator.is_valid(value)),
        fields=_fields(value, expected) if isinstance(expected, dict) else None,
    )


def _fields(value: Any, expected: dict[str, Any]) -> dict[str, bool]:
    given = value if isinstance(value, dict) else {}
    return {name: name in given and json_equal(given[name], wanted) for name, wanted in expected.items()}


def tally(verdicts: Sequence[Verdict]) -> DomainScores:
    """Sum up verdicts. ``fields_right`` is over all fields of all rows, so rows with more fields weigh more."""
    by_field: dict[str, list[bool]] = {}
    for verdict in verdicts:
        for name, right in (verdict.fields or {}).items():
            by_field.setdefault(name, []).append(right)
    return DomainScores(
        rows=len(verdicts),
        exact=share([verdict.exact for verdict in verdicts]),
        parses=share([verdict.parses for verdict in verdicts if verdict.parses is not None]),
        fits_schema=share([verdict.fits_schema for verdict in verdicts if verdict.fits_schema is not None]),
        fields_right=share([right for flags in by_field.values() for right in flags]),
        by_field={name: sum(flags) / len(flags) for name, flags in by_field.items()},
    )


def share(flags: Sequence[bool]) -> float | None:
    """The share of true flags; None when there is none to count."""
    return sum(flags) / len(flags) if flags else None
