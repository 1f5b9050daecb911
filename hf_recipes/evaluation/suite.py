"""What is evaluated: the `evaluation:` part of a recipe, checked and read before any model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.log import logger
from hf_recipes.data.reading.source_files import find_files
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.evaluation.gate import Condition, parse_gate
from hf_recipes.evaluation.judges.json_format import compiled_schema, value_fault
from hf_recipes.evaluation.judges.text import TEXT_SCORES
from hf_recipes.evaluation.rating_settings import RatingSettings
from hf_recipes.evaluation.rows import DomainRow, draw, read_domain_rows
from hf_recipes.evaluation.scoring import SchemaValidator, json_reference

_SOURCES = ("domain", "general")
_OF_A_SOURCE = ("path", "name", "split", "data_files", "columns", "format")
_FILES = ("schema", "choices", "instructions")
_NUMBERS = ("max_new_tokens", "samples", "batch_size", "during_training")
_SETS = ("domain", "general", "choices", "instructions", "tasks")
_NEEDS_DOMAIN = ("schema", "format", "scores", "function", "rating")


@dataclass(frozen=True)
class EvaluationSuite:
    """What a model is asked and how its answers are judged. At least one of the sets `domain`, `general`, `choices`,
    `instructions` and `tasks` is given.

    Args:
        domain: rows of prompts and answers, a file or, as an entry of ``datasets:``, a mapping with `path` and e.g.
            `columns`; the last assistant turn is the reference.
        schema: short for the format ``{schema: FILE}``.
        general: rows of general data whose loss shows forgetting, given as `domain` is.
        scores: keys of `judges.text.TEXT_SCORES`, of the domain answers against their references.
        function: ``FILE.py:NAME``, a score of the user's own for domain answers; its code is run.
        choices: JSONL of multiple-choice questions, answered by likelihood (`judges.choices`).
        tasks: tasks of lm-evaluation-harness, by the path of their YAML or by name.
        format: what a domain answer must be, see `judges.formats.format_check`.
        instructions: JSONL of prompts with instructions that a program can check, as IFEval writes them.
        rating: criteria and rows of the rating sheet for people.
        gate: conditions that the result must meet.
        during_training: rows of `domain` and of `general` whose loss is logged at each evaluation of the training.
        stop: texts that end an answer.
        max_new_tokens: tokens an answer may have.
        samples: rows taken from each set, drawn with a fixed seed where the file has more.
        batch_size: answers generated at once.
    """

    domain: SourceSpec | None = None
    schema: Path | None = None
    general: SourceSpec | None = None
    scores: tuple[str, ...] = ()
    function: str | None = None
    choices: Path | None = None
    tasks: tuple[str, ...] = ()
    format: Mapping[str, Any] | None = None
    instructions: Path | None = None
    rating: RatingSettings | None = None
    gate: tuple[Condition, ...] = ()
    during_training: int = 0
    stop: tuple[str, ...] = ()
    max_new_tokens: int = 48
    samples: int = 64
    batch_size: int = 32

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> EvaluationSuite:
        """Build the suite from a recipe's ``evaluation:`` with absolute paths. A key that is null or empty is absent.

        Raises:
            UserError: an unknown key, a missing file, a value of the wrong kind, or nothing to evaluate.
        """
        if not isinstance(settings, Mapping):
            raise UserError(
                f"evaluation: {settings!r} is not a mapping: write e.g. evaluation: {{domain: held_out.jsonl}}."
            )
        known = [field.name for field in fields(cls)]
        for key in settings:
            if key not in known:
                raise UserError(f"evaluation.{key} is no key{nearest(str(key), known)}: known are {', '.join(known)}.")
        given = {key: value for key, value in settings.items() if not _is_absent(key, value)}
        if not any(given.get(key) for key in _SETS):
            raise UserError("evaluation.domain is missing: name a file of held-out rows, prompts with their answers.")
        for key in _NEEDS_DOMAIN:
            if key in given and "domain" not in given:
                raise UserError(
                    f"evaluation.{key} judges answers to evaluation.domain, which is missing: name its file."
                )
        if "schema" in given and "format" in given:
            raise UserError("evaluation.schema is short for format: {schema: FILE}: keep one of the two.")
        return cls(**{key: _checked(key, value) for key, value in given.items()})

    @property
    def format_spec(self) -> Mapping[str, Any] | None:
        """The format asked for, `schema` included; None where answers need none."""
        return {"schema": self.schema} if self.schema is not None else self.format

    def validator(self) -> SchemaValidator | None:
        """The compiled schema of the format, or None; a schema that is not one is a `UserError`."""
        schema = (self.format_spec or {}).get("schema")
        return None if schema is None else _SchemaCheck(compiled_schema(schema))

    @cached_property
    def domain_rows(self) -> list[DomainRow]:
        """All rows of the `domain`, read once; none without one.

        Raises:
            UserError: the file is empty, or a row is ill-formed; file and line are named.
        """
        return [] if self.domain is None else read_domain_rows(self.domain)

    def rows(self) -> list[DomainRow]:
        """`samples` of the domain rows, in file order; see `domain_rows`."""
        self._warn_about_references(self.domain_rows)
        return draw(self.domain_rows, self.samples)

    def _warn_about_references(self, rows: list[DomainRow]) -> None:
        validator = self.validator()
        if validator is None or self.domain is None:
            return
        values = [(row, json_reference(row.reference)) for row in rows]
        bad = [row.number for row, value in values if value is None or not validator.is_valid(value)]
        if bad:
            schema = self.schema or "the schema"
            logger.warning(
                f"{self.domain.path}: {len(bad)} of {len(rows)} references do not fit {schema} (first in row {bad[0]})"
                " and cannot be answered rightly: correct the references or the schema."
            )


@dataclass(frozen=True)
class _SchemaCheck:
    validator: Any

    def is_valid(self, instance: Any) -> bool:
        return not value_fault(instance, self.validator)


def _is_absent(key: str, value: Any) -> bool:
    off = value is False or (key == "during_training" and value in (0, "off"))
    return value is None or off or value in ("", [], {})


def _checked(key: str, value: Any) -> Any:
    if key in _SOURCES:
        return _source(key, value)
    if key in _FILES:
        return _existing_file(key, value)
    if key in _NUMBERS:
        return _positive_integer(key, value)
    if key == "format":
        return _format(value)
    if key == "rating":
        return RatingSettings.from_dict(value)
    if key == "function":
        return _function(value)
    texts = _texts(key, value)
    if key == "gate":
        return parse_gate(",".join(texts))
    if key == "tasks":
        for name in texts:
            if Path(name).suffix in (".yaml", ".yml", ".json"):
                _existing_file("tasks", name)
    if key == "scores":
        for name in texts:
            if name not in TEXT_SCORES:
                known = ", ".join(TEXT_SCORES)
                raise UserError(
                    f"evaluation.scores: {name!r} is no score{nearest(name, TEXT_SCORES)}: known are {known}."
                )
    return texts


def _texts(key: str, value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(each, str) and each for each in values):
        raise UserError(f"evaluation.{key}: {value!r} is not a list of texts: write [first, second].")
    return tuple(values)


def _source(key: str, value: Any) -> SourceSpec:
    if not isinstance(value, Mapping):
        return SourceSpec(str(_existing_file(key, value)))
    for name in value:
        if name not in _OF_A_SOURCE:
            known = ", ".join(_OF_A_SOURCE)
            raise UserError(f"evaluation.{key}.{name} is no key{nearest(str(name), _OF_A_SOURCE)}: known are {known}.")
    source = SourceSpec.from_dict(value, f"evaluation.{key}")
    find_files(source)
    return source


def _existing_file(key: str, value: Any) -> Path:
    if not isinstance(value, (str, Path)):
        raise UserError(f"evaluation.{key}: {value!r} is not a path: write the name of a file.")
    if not Path(value).is_file():
        hub = f", or for a dataset on the Hub write {key}: {{path: {value}}}" if key in _SOURCES else ""
        raise UserError(f"evaluation.{key}: the file '{value}' does not exist: correct the path in the recipe{hub}.")
    return Path(value)


def _format(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UserError(f"evaluation.format: {value!r} is not a mapping: write e.g. format: {{json: true}}.")
    if isinstance(value.get("schema"), str):
        _existing_file("format.schema", value["schema"])
    return dict(value)


def _function(value: Any) -> str:
    file, colon, name = str(value).rpartition(":")
    if not isinstance(value, str) or not colon or not name.isidentifier():
        raise UserError(f"evaluation.function: {value!r} is not of the form file.py:function.")
    _existing_file("function", file)
    return value


def _positive_integer(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"evaluation.{key}: {value!r} is not a positive whole number.")
    return value
