"""YAML read with the line of every key, so that an error can say where; scalars by YAML 1.2, so that `off` stays text
and `1e-3` is a number."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import refuse_special

# Aliases (*name) may stand for one part a thousand times, and parts of it again: a few lines could fill the memory.
_MAX_VALUES = 100_000
# Dates are left text: a recipe is JSON data, and `2026-13-45` is no error of YAML's.
_REPLACED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2 booleans and floats. YAML 1.1 reads `off`, `no`, `y` as booleans and `1e-3` as text."""


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] not in _REPLACED]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN)$"),
    "-+0123456789.",
)
# Resolvers are tried in order: integers must win over the float pattern, which matches them too.
for _pairs in _Loader.yaml_implicit_resolvers.values():
    _pairs.sort(key=lambda pair: pair[0] == "tag:yaml.org,2002:float")


def parse_scalar(text: str) -> Any:
    """Read one command-line value with the same rules as the recipe file (``8``, ``1e-3``, ``off``, ``[a, b]``)."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text


def load_yaml(path: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Read a YAML mapping and the line of each key (dotted paths such as ``datasets.0.path``; lines from 1).

    Raises:
        UserError: the file is missing, unreadable, no mapping, holds a key twice, or more values than a recipe has.
    """
    try:
        refuse_special(path)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"Recipe '{path}' cannot be read: {error}.") from None
    except UnicodeDecodeError as error:
        raise UserError(f"Recipe '{path}' is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None
    lines: dict[str, int] = {}
    try:
        loader = _Loader(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())}): remove that character.") from None
    try:
        node = loader.get_single_node()
        value = _construct(loader, node, "", lines, path, itertools.count()) if node is not None else {}
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UserError(f"{path} line {line}: not valid YAML ({error.problem}): mend that line.") from None
    except UserError:
        raise
    except ValueError as error:  # a number of thousands of digits, or what a tag (!!int x) does not fit
        raise UserError(f"{path}: a value cannot be read ({error}): write it as plain text or number.") from None
    except RecursionError:
        raise UserError(
            f"{path}: an alias (*name) refers to the part it stands in, or values are nested too deep: write them out."
        ) from None
    finally:
        loader.dispose()
    if not isinstance(value, dict):
        raise UserError(f"{path}: a recipe is a list of `key: value` lines, this file holds a {type(value).__name__}.")
    return value, lines


def _construct(
    loader: _Loader, node: yaml.Node, prefix: str, lines: dict[str, int], path: Path, count: Iterator[int]
) -> Any:
    if next(count) > _MAX_VALUES:
        raise UserError(f"{path}: holds more than {_MAX_VALUES:,} values, aliases counted as often as used: no recipe.")
    if isinstance(node, yaml.MappingNode):
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                line = key_node.start_mark.line + 1
                raise UserError(f"{path} line {line}: merge keys (<<) are not read here: write the keys out.")
            key = str(loader.construct_object(key_node))
            dotted = f"{prefix}{key}"
            line = key_node.start_mark.line + 1
            if key in result:
                raise UserError(f"{path} line {line}: '{dotted}' is given twice (first in line {lines[dotted]}).")
            lines[dotted] = line
            result[key] = _construct(loader, value_node, f"{dotted}.", lines, path, count)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_construct(loader, item, f"{prefix}{i}.", lines, path, count) for i, item in enumerate(node.value)]
    return loader.construct_object(node)
