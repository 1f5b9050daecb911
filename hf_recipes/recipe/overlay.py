"""Command-line keys laid over a recipe: `--key value`, nested keys dotted (`--watch.spike_sigma 8`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.yaml_lines import parse_scalar


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Turn ``["--lr", "1e-3", "--a.b=off", "--flag"]`` into ``{"lr": 0.001, "a.b": "off", "flag": True}``.

    Several values after one key make a list. Raises `UserError` for a value without a key or a key given twice.
    """
    overrides: dict[str, Any] = {}
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if not argument.startswith("--") or argument == "--":
            raise UserError(f"'{argument}' on the command line belongs to no key: write --key value.")
        key, equals, inline = argument[2:].partition("=")
        texts = [inline] if equals else []
        while not equals and position < len(arguments) and not arguments[position].startswith("--"):
            texts.append(arguments[position])
            position += 1
        if key in overrides:
            raise UserError(f"--{key} is given twice on the command line: keep one.")
        values = [parse_scalar(text) for text in texts]
        overrides[key] = True if not values else values[0] if len(values) == 1 else values
    return overrides


def apply_overrides(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """Return `values` with each dotted key set; `values` itself is left alone.

    Raises `UserError` when a dotted key walks through something that holds no keys, or an index out of range.
    """
    result = dict(values)
    for dotted, value in overrides.items():
        head, *rest = dotted.split(".")
        result[head] = _set(result.get(head), rest, value, dotted) if rest else value
    return result


def _set(container: Any, path: list[str], value: Any, dotted: str) -> Any:
    if not path:
        return value
    head, *rest = path
    if isinstance(container, list):
        if not head.isdigit() or int(head) >= len(container):
            raise UserError(f"--{dotted}: there is no item '{head}' in a list of {len(container)}.")
        copy = list(container)
        copy[int(head)] = _set(copy[int(head)], rest, value, dotted)
        return copy
    if container is None or isinstance(container, dict):
        mapping = dict(container or {})
        mapping[head] = _set(mapping.get(head), rest, value, dotted)
        return mapping
    raise UserError(f"--{dotted}: '{head}' cannot be set, the recipe holds the plain value {container!r} there.")
