"""The table of all recipe keys: name, kinds of value, choices, default, help.

It is read from the live dataclasses (`SFTConfig`, `ModelConfig`, `RecipeArguments`), which takes seconds to import,
and kept as data (`key_table.json`) so that a typo is found and `--help` printed at once. The stored table counts only
for the versions it was made with; otherwise the live one is built.
"""

from __future__ import annotations

import enum
import functools
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hf_recipes.core.files import json_safe
from hf_recipes.core.versions import installed_version
from hf_recipes.recipe.keys import MORE_KINDS

STORED_TABLE = Path(__file__).with_name("key_table.json")
_VERSIONED = ("transformers", "trl")
_KINDS: dict[Any, str] = {bool: "bool", int: "int", float: "float", str: "str", dict: "dict", list: "list"}


@dataclass(frozen=True)
class KeySpec:
    """One key. `kinds` are those of bool, int, float, str, dict, list, null that its annotation allows."""

    name: str
    owner: str
    kinds: tuple[str, ...]
    choices: tuple[str, ...] | None
    default: Any
    help: str


def load_key_table() -> dict[str, KeySpec]:
    """The stored table where it was made with the installed versions, else the live one."""
    stored = json.loads(STORED_TABLE.read_text(encoding="utf-8")) if STORED_TABLE.exists() else None
    if stored is None or stored["versions"] != installed_versions():
        return live_key_table()
    return {
        key["name"]: KeySpec(
            **{**key, "kinds": tuple(key["kinds"]), "choices": key["choices"] and tuple(key["choices"])}
        )
        for key in stored["keys"]
    }


def installed_versions() -> dict[str, str | None]:
    """Versions of the packages whose dataclasses the table describes."""
    return {name: installed_version(name) for name in _VERSIONED}


@functools.cache
def live_key_table() -> dict[str, KeySpec]:
    """Read the table from the dataclasses. Imports transformers and trl (seconds)."""
    from trl import ModelConfig, SFTConfig

    from hf_recipes.recipe.keys import RecipeArguments

    table: dict[str, KeySpec] = {}
    for owner in (RecipeArguments, ModelConfig, SFTConfig):
        hints = typing.get_type_hints(owner)
        for item in fields(owner):
            if item.init and item.name not in table:
                table[item.name] = _spec(owner.__name__, item, hints[item.name])
    return table


def write_key_table(path: Path = STORED_TABLE) -> None:
    """Store the live table; run by hand (`python -m hf_recipes.recipe.key_table`) when TRL or our keys change."""
    keys = [json_safe(asdict(spec)) for spec in live_key_table().values()]
    path.write_text(json.dumps({"versions": installed_versions(), "keys": keys}, indent=1) + "\n", encoding="utf-8")


def _spec(owner: str, item: Any, hint: Any) -> KeySpec:
    default = item.default_factory() if item.default_factory is not MISSING else item.default
    if isinstance(default, enum.Enum):
        default = default.value
    kinds: dict[str, None] = {}
    choices: dict[str, None] = dict.fromkeys(map(str, item.metadata.get("choices", ())))
    for member in _union_members(hint):
        origin = typing.get_origin(member) or member
        if member is type(None):
            kinds["null"] = None
        elif origin is typing.Literal:
            kinds["str"] = None
            choices.update(dict.fromkeys(map(str, typing.get_args(member))))
        elif isinstance(member, type) and issubclass(member, enum.Enum):
            kinds["str"] = None
            choices.update(dict.fromkeys(str(option.value) for option in member))
        elif origin in _KINDS:
            kinds[_KINDS[origin]] = None
    kinds.update(dict.fromkeys(MORE_KINDS.get(item.name, ())))
    help_text = " ".join(str(item.metadata.get("help", "")).replace("%%", "%").split())
    return KeySpec(item.name, owner, tuple(kinds), tuple(choices) or None, default, help_text)


def _union_members(hint: Any) -> Iterable[Any]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for member in typing.get_args(hint):
            yield from _union_members(member)
    else:
        yield hint


if __name__ == "__main__":
    write_key_table()
