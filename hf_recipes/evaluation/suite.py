"""What is evaluated: the `evaluation:` part of a recipe, checked and read before any model is loaded."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.files import read_json
from hf_recipes.core.log import logger
from hf_recipes.evaluation.scoring import SchemaValidator, json_reference

_SAMPLING_SEED = 0  # one seed for every evaluation: runs are compared on the same rows


@dataclass(frozen=True)
class DomainRow:
    """One question: the turns up to the last assistant turn, and that turn as the reference. `number` is its line."""

    number: int
    messages: list[dict[str, Any]]
    reference: str


@dataclass(frozen=True)
class EvaluationSuite:
    """Three sets: domain questions with references, a JSON Schema their answers must fit, general text.

    Args:
        domain: JSONL, a row ``{"messages": [...]}`` whose last assistant turn is the reference.
        schema: JSON Schema (Draft 2020-12) of the answers; None when the answers need no format.
        general: rows of general data whose loss shows forgetting; None leaves that out.
        max_new_tokens: tokens an answer may have.
        samples: rows taken from each set, drawn with a fixed seed where the file has more.
        batch_size: answers generated at once.
    """

    domain: Path
    schema: Path | None = None
    general: Path | None = None
    max_new_tokens: int = 48
    samples: int = 64
    batch_size: int = 32

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> EvaluationSuite:
        """Build the suite from a recipe's ``evaluation:`` with absolute paths.

        Raises:
            UserError: an unknown key, a missing file, or a number that is not a positive integer.
        """
        known = [field.name for field in fields(cls)]
        for key in settings:
            if key not in known:
                raise UserError(f"evaluation.{key} is no key{nearest(str(key), known)}: known are {', '.join(known)}.")
        if not settings.get("domain"):
            raise UserError("evaluation.domain is missing: name a JSONL file of held-out rows with messages.")
        paths = {key: _existing_file(key, settings.get(key)) for key in ("domain", "schema", "general")}
        assert paths["domain"] is not None
        numbers = {
            key: _positive_integer(key, settings[key])
            for key in ("max_new_tokens", "samples", "batch_size")
            if settings.get(key) is not None
        }
        return cls(domain=paths["domain"], schema=paths["schema"], general=paths["general"], **numbers)

    def validator(self) -> SchemaValidator | None:
        """The compiled schema, or None; a schema that is not one is a `UserError`."""
        if self.schema is None:
            return None
        import jsonschema

        try:
            schema = read_json(self.schema)
            jsonschema.Draft202012Validator.check_schema(schema)
        except ValueError as error:
            raise UserError(f"{self.schema} is not valid JSON ({error}): write a JSON Schema.") from None
        except jsonschema.SchemaError as error:
            raise UserError(f"{self.schema} is not a JSON Schema of Draft 2020-12: {error.message}.") from None
        return jsonschema.Draft202012Validator(schema)

    def rows(self) -> list[DomainRow]:
        """Read the domain rows and draw `samples` of them, in file order.

        Raises:
            UserError: the file is empty, or a row is ill-formed; file and line are named.
        """
        rows = list(_read_rows(self.domain))
        if not rows:
            raise UserError(f"{self.domain} holds no rows: evaluation.domain needs at least one.")
        self._warn_about_references(rows)
        return draw(rows, self.samples)

    def _warn_about_references(self, rows: list[DomainRow]) -> None:
        validator = self.validator()
        if validator is None:
            return
        values = [(row, json_reference(row.reference)) for row in rows]
        bad = [row.number for row, value in values if value is None or not validator.is_valid(value)]
        if bad:
            logger.warning(
                f"{self.domain}: {len(bad)} of {len(rows)} references do not fit {self.schema} (first in line {bad[0]})"
                " and cannot be answered rightly: correct the references or the schema."
            )


def draw(rows: list[Any], count: int) -> list[Any]:
    """At most `count` of `rows`, drawn with a fixed seed (not a file's head, which may be sorted) and kept in order."""
    if len(rows) <= count:
        return rows
    return [rows[index] for index in sorted(random.Random(_SAMPLING_SEED).sample(range(len(rows)), count))]


def _existing_file(key: str, value: Any) -> Path | None:
    if value is None or value == "":
        return None
    if not isinstance(value, (str, Path)):
        raise UserError(f"evaluation.{key}: {value!r} is not a path: write the name of a file.")
    if not Path(value).is_file():
        raise UserError(f"evaluation.{key}: the file '{value}' does not exist: correct the path in the recipe.")
    return Path(value)


def _positive_integer(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"evaluation.{key}: {value!r} is not a positive whole number.")
    return value


def _read_rows(path: Path) -> Iterator[DomainRow]:
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _domain_row(f"{path}, line {number}", number, line)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): convert it.") from None


def _domain_row(where: str, number: int, line: str) -> DomainRow:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where} is not valid JSON ({error}): each line must be one row.") from None
    turns = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(turns, list):
        raise UserError(f"{where} has no list 'messages': write {{'messages': [{{'role': …, 'content': …}}, …]}}.")
    for index, turn in enumerate(turns):
        if (
            not isinstance(turn, dict)
            or not isinstance(turn.get("role"), str)
            or not isinstance(turn.get("content"), str)
        ):
            raise UserError(f"{where}: messages[{index}] needs a role and a content, both text.")
    last = max((index for index, turn in enumerate(turns) if turn["role"] == "assistant"), default=None)
    if not last:  # absent, or in first place with nothing to answer
        raise UserError(f"{where} has no assistant turn after a prompt: its last assistant turn is the reference.")
    return DomainRow(number=number, messages=turns[:last], reference=turns[last]["content"])
