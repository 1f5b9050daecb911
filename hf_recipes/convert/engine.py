"""From another tool's keys to a recipe, each key accounted for exactly once."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.convert.answers import Answer, Config, Kind, Rule, same
from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.secrets import HIDDEN, names_secret


@dataclass(frozen=True)
class Default:
    """Where the tool does something without being told that we would not: what the recipe now says (or nothing, where
    it cannot be said), and a note."""

    recipe: Mapping[str, Any]
    note: str


@dataclass(frozen=True)
class Tool:
    """A tool whose configurations are understood.

    `rules` are by key; `families` for keys of one kind, by a pattern of their whole name. `telling` are keys that no
    other tool here has. `refuse` raises `UserError` for what must not become a recipe; `defaults` sees the recipe made
    from the keys.
    """

    name: str
    title: str
    rules: Mapping[str, Rule]
    telling: frozenset[str]
    defaults: Callable[[Config, Mapping[str, Any]], Sequence[Default]]
    refuse: Callable[[Config], None]
    families: Mapping[str, Rule] = field(default_factory=dict)

    def rule(self, key: str) -> Rule | None:
        """The rule for a key: its own, or that of its family."""
        family = (rule for pattern, rule in self.families.items() if re.fullmatch(pattern, key))
        return self.rules.get(key) or next(family, None)


@dataclass(frozen=True)
class Row:
    """A key of the file, dotted where it stands inside another, and what became of it."""

    key: str
    value: Any
    kind: Kind
    recipe: Mapping[str, Any]
    note: str


@dataclass(frozen=True)
class Conversion:
    """A recipe made from another tool's configuration: its values, a row for every key, and what was written down
    because that tool does it by itself. `origins` are the keys that the recipe's come from."""

    tool: Tool
    values: dict[str, Any]
    rows: tuple[Row, ...]
    defaults: tuple[Default, ...]
    origins: Mapping[str, str]

    def of_kind(self, *kinds: Kind) -> list[Row]:
        """The rows of some kinds, in the file's order."""
        return [row for row in self.rows if row.kind in kinds]


def convert(config: Config, tool: Tool) -> Conversion:
    """Make a recipe of `config`, which is one of `tool`.

    Raises:
        UserError: two keys contradict each other, a value cannot be read, or the file asks for another kind of training
            than supervised fine-tuning.
    """
    filled = Config({k: v for k, v in config.values.items() if v is not None}, config.path, config.find, config.read)
    tool.refuse(filled)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    rows: list[Row] = []
    for key, value in config.values.items():
        answer = same("empty, as if absent") if value is None else _answer(key, value, filled, tool)
        for ours, said in answer.recipe.items():
            _say(values, ours, said, (key, origins.get(ours, key)), config)
            origins.setdefault(ours, key)
        rows += _rows(key, value, answer)
    defaults = [default for default in tool.defaults(filled, values) if not set(default.recipe) & set(values)]
    for default in defaults:
        values.update(default.recipe)
    return Conversion(tool, values, tuple(rows), tuple(defaults), origins)


def _answer(key: str, value: Any, config: Config, tool: Tool) -> Answer:
    rule = tool.rule(key)
    if rule is None:
        return Answer("unknown", {}, f"no key of {tool.title} known here{nearest(key, tool.rules)}")
    return rule(value, config)


def _say(values: dict[str, Any], ours: str, said: Any, keys: tuple[str, str], config: Config) -> None:
    """Set a key of the recipe; mappings are joined, two different values are an error."""
    before = values.get(ours, said)
    if isinstance(before, dict) and isinstance(said, dict):
        values[ours] = {**before, **said}
    elif before == said:
        values[ours] = said
    else:
        raise UserError(
            f"{config.path}: '{keys[1]}' and '{keys[0]}' both decide {ours}, {show(before)} and {show(said)}: keep one."
        )


def _rows(key: str, value: Any, answer: Answer) -> Iterator[Row]:
    if not answer.parts:
        yield Row(key, _hidden(key, value), answer.kind, answer.recipe, answer.note)
    for name, part in answer.parts:
        inner = _inside(value, name)
        yield from _rows(f"{key}{'' if name.startswith('[') else '.'}{name}", inner, part)


def _inside(value: Any, name: str) -> Any:
    """The value of a part: ``[0]`` of a list (a lone item may stand for a list of one), ``[name]`` of a text of names,
    a key of a mapping."""
    if name.startswith("["):
        index = name[1:-1]
        return (value[int(index)] if isinstance(value, list) else value) if index.isdigit() else index
    return value.get(name) if isinstance(value, dict) else value


def _hidden(key: str, value: Any) -> Any:
    """Secrets are never shown."""
    return HIDDEN if isinstance(value, str) and names_secret(key) else value


def show(value: Any) -> str:
    """A value as one would write it in YAML."""
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False, default=str)
