"""What may become of one key of another tool's configuration, and the rules that decide it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hf_recipes.core.errors import UserError

# taken: the recipe says it; same: it holds without a key; none: nothing here does it; unknown: no key of that tool.
Kind = Literal["taken", "same", "none", "unknown"]
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True)
class Answer:
    """What became of one key: the recipe's keys, a note (what it is here, or why not and what to do instead), and the
    answers for the keys inside it, by name."""

    kind: Kind
    recipe: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    parts: tuple[tuple[str, Answer], ...] = ()


@dataclass(frozen=True)
class Config:
    """Another tool's configuration: its keys that have a value, and the file they stand in.

    `find` looks for a file named in it, as that tool would and beside the file, and gives its path for the recipe, or
    None; `read` gives a JSON file's content, or None.
    """

    values: Mapping[str, Any]
    path: Path
    find: Callable[[str], str | None] = lambda name: None
    read: Callable[[str], Any] = lambda name: None

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, or `default` where it is absent or empty."""
        value = self.values.get(key)
        return default if value is None else value

    def on(self, key: str, default: bool = False) -> bool:
        """Whether a switch is on."""
        return is_on(self.get(key, default))


Rule = Callable[[Any, Config], Answer]


def is_on(value: Any) -> bool:
    """Whether a value means true: YAML 1.1's words count, as the other tools read them."""
    return str(value).lower() in _TRUE


def is_off(value: Any) -> bool:
    """Whether a value means false."""
    return str(value).lower() in _FALSE


def names_of(value: Any) -> list[str]:
    """A list of names that may be written as a list or as ``a,b``."""
    items: Iterable[Any] = value if isinstance(value, (list, tuple)) else str(value).split(",")
    return [str(item).strip() for item in items if str(item).strip()]


def number_of(value: Any, key: str, config: Config) -> float:
    """A number, which may be written as text; raises `UserError` that names the key."""
    try:
        if not isinstance(value, bool):
            return value if isinstance(value, (int, float)) else int(value) if str(value).isdigit() else float(value)
    except (TypeError, ValueError):
        pass
    raise UserError(f"{config.path}: '{key}' is {value!r}: give a number.")


def taken(recipe: Mapping[str, Any], note: str = "") -> Answer:
    """The recipe says it by these keys."""
    return Answer("taken", recipe, note)


def same(note: str) -> Answer:
    """It holds here without a key."""
    return Answer("same", {}, note)


def none(note: str) -> Answer:
    """Nothing here does it: why, and what to do instead."""
    return Answer("none", {}, note)


def rename(ours: str, note: str = "") -> Rule:
    """The same value under our name."""
    return lambda value, config: taken({ours: value}, note)


def numeric(theirs: str, ours: str | None = None) -> Rule:
    """The same number under our name."""
    return lambda value, config: taken({ours or theirs: number_of(value, theirs, config)})


def listed(ours: str) -> Rule:
    """The same list under our name, written there as a list or as ``a,b``."""
    return lambda value, config: taken({ours: names_of(value)})


def switch(ours: str, note: str = "") -> Rule:
    """The same switch under our name."""
    return lambda value, config: taken({ours: is_on(value)}, note)


def holds(note: str) -> Rule:
    """Whatever its value, nothing has to be said here."""
    return lambda value, config: same(note)


def always_lacks(note: str) -> Rule:
    """Nothing here does it, whatever its value."""
    return lambda value, config: none(note)


def lacks(note: str, off: str = "off there too") -> Rule:
    """Nothing here does it; where it is off, nothing is missing."""
    return lambda value, config: same(off) if is_nothing(value) else none(note)


def is_nothing(value: Any) -> bool:
    """Whether a value switches its key off: false, 0, an empty text or list, ``none``."""
    return value in (0, "", [], {}) or is_off(value) or str(value).lower() in ("none", "null")
