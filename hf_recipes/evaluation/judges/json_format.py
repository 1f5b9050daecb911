"""JSON and JSON Schema as formats of answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, file_problem
from hf_recipes.core.files import read_json
from hf_recipes.evaluation.judges.regex_format import MATCH_SECONDS, TooSlow, search
from hf_recipes.evaluation.scoring import parse_json


def json_fault(text: str) -> str:
    """Why `text` is not a JSON object or array; a bare number or word also parses, but is no format."""
    try:
        value = parse_json(text)
    except ValueError as error:
        return f"not JSON: {error}"
    return "" if isinstance(value, (dict, list)) else "a JSON value, but neither an object nor an array"


def schema_fault(text: str, validator: Any) -> str:
    """Why `text` is not JSON that fits the schema: the first fault that the validator finds, and where."""
    try:
        value = parse_json(text)
    except ValueError as error:
        return f"not JSON: {error}"
    return value_fault(value, validator)


def value_fault(value: Any, validator: Any) -> str:
    """Why a JSON value does not fit the schema."""
    try:
        error = next(validator.iter_errors(value), None)
    except RecursionError:
        return "nested too deeply for the schema"
    except TooSlow as slow:
        return str(slow)
    if error is None:
        return ""
    message = error.message if len(error.message) <= 200 else f"{error.message[:200]}…"
    return f"{error.json_path}: {message}"


def compiled_schema(schema: Any) -> Any:
    """A validator of Draft 2020-12 for a schema or the path of one.

    It fetches nothing, and its patterns are time-bounded (see `regex_format`).

    Raises:
        UserError: the file cannot be read, is no JSON or no schema, or refers to what is not in it.
    """
    import jsonschema
    from jsonschema import validators
    from referencing import Registry

    where, schema = _read_schema(schema)
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UserError(f"{where} is not a JSON Schema of Draft 2020-12: {error.message}.") from None
    bounded = validators.extend(jsonschema.Draft202012Validator, {"pattern": _pattern})
    _check_references(where, schema)
    return bounded(schema, registry=Registry())


def _read_schema(schema: Any) -> tuple[str, Any]:
    if isinstance(schema, (dict, bool)):
        return "The schema", schema
    if not isinstance(schema, (str, Path)):
        raise UserError(f"evaluation.format.schema: {schema!r} is neither a path nor a schema.")
    try:
        return str(schema), read_json(Path(schema))
    except OSError as error:
        raise UserError(file_problem(error)) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{schema} is not valid JSON ({error}): write a JSON Schema.") from None


def _check_references(where: str, schema: Any) -> None:
    """A reference that leads nowhere would fail in the middle of an evaluation."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012

    identifier = schema.get("$id", "") if isinstance(schema, dict) else ""
    resolver = Registry().with_resource(identifier, DRAFT202012.create_resource(schema)).resolver(identifier)
    for reference in _references(schema):
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise UserError(f"{where} refers to '{reference}', which is not in it: copy it in under $defs.") from None


def _references(schema: Any) -> list[str]:
    """All references of a schema, but for parts with an ``$id`` of their own, to which theirs are relative."""
    if isinstance(schema, list):
        return [reference for item in schema for reference in _references(item)]
    if not isinstance(schema, dict):
        return []
    own = [schema[key] for key in ("$ref", "$dynamicRef") if isinstance(schema.get(key), str)]
    below = [value for value in schema.values() if not (isinstance(value, dict) and "$id" in value)]
    return own + _references(below)


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Any:
    from jsonschema import ValidationError

    if not validator.is_type(instance, "string"):
        return
    if not search(pattern, instance, seconds=MATCH_SECONDS):
        shown = instance if len(instance) <= 80 else f"{instance[:80]}…"
        yield ValidationError(f"{shown!r} does not match {pattern!r}")
