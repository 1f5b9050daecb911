"""Which cleaning rules are on, as written under ``clean:`` in a recipe. Imports none of the rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from hf_recipes.core.errors import UserError, nearest

_SWITCH = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
DUPLICATES = ("off", "exact", "near")
PERSONAL_DATA = ("off", "report", "drop")
SMALLEST_NEAR_THRESHOLD = 0.5
# Rules about one row; the others look at all rows of a source.
_ROW_RULES = (
    "html",
    "unicode",
    "control_characters",
    "special_tokens_only",
    "empty",
    "max_chars",
    "language",
    "personal_data",
)


def _key(default: Any, help: str, read: Callable[[str, Any], Any], on: Any = None) -> Any:
    """A key: default (off), help, how its value is read, what plain ``on`` means (None: it needs a value)."""
    return field(default=default, metadata={"help": help, "read": read, "on": on})


def _switch(key: str, value: Any) -> bool:
    switch = _SWITCH.get(str(value).lower())
    if switch is None:
        raise UserError(f"clean.{key} must be on or off, not {value!r}.")
    return switch


def _number(key: str, value: Any, what: str, low: float, high: float = math.inf) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high or math.isinf(number):
        raise UserError(f"clean.{key} must be {what}, not {value!r}.")
    return number


def _whole(key: str, value: Any) -> int:
    number = _number(key, value, "a whole number of characters, 1 or more, or off", 1)
    if number != int(number):
        raise UserError(f"clean.{key} must be a whole number of characters, 1 or more, or off, not {value!r}.")
    return int(number)


def _choice(choices: tuple[str, ...]) -> Callable[[str, Any], str]:
    def read(key: str, value: Any) -> str:
        if value not in choices:
            raise UserError(f"clean.{key} must be {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}.")
        return str(value)

    return read


def _languages(key: str, value: Any) -> tuple[str, ...]:
    # YAML reads the code of Norwegian, `no`, as False; here False is off, so that it has to be quoted there.
    codes = [value] if isinstance(value, str) else value
    is_list = isinstance(codes, Sequence) and codes and all(isinstance(code, str) for code in codes)
    if not is_list:
        raise UserError(
            f"clean.{key} must be the languages to keep, as ISO 639-1 codes such as [en, zh], not {value!r}."
        )
    return tuple(sorted({code.strip().lower() for code in codes}))


@dataclass(frozen=True)
class CleanConfig:
    """Which rules are on and how they are set; all are off by default.

    Each field's ``metadata["help"]`` is its line in the key table. `longer_than_mean`, `max_value_share` and
    `max_chars` are None when off, `language` is empty.
    """

    html: bool = _key(False, "Turn HTML into plain text; code samples keep their characters.", _switch, True)
    unicode: bool = _key(False, "Mend mojibake (text decoded by the wrong encoding) and compose to NFC.", _switch, True)
    control_characters: bool = _key(
        False, "Remove control and invisible characters; every line break becomes \\n.", _switch, True
    )
    special_tokens_only: bool = _key(
        False, "Drop rows with an answer, or text, that holds nothing but special tokens.", _switch, True
    )
    empty: bool = _key(
        False, "Drop rows with an answer, or text, without a letter, digit or symbol in it.", _switch, True
    )
    max_chars: int | None = _key(None, "Drop rows of more characters than this.", _whole)
    longer_than_mean: float | None = _key(
        None,
        "Drop rows of more tokens than this many times the mean of their source; on: 4.",
        lambda key, value: _number(key, value, "a number above 1, on or off", 1.000001),
        4.0,
    )
    language: tuple[str, ...] = _key(
        (), "Languages to keep (ISO 639-1); rows too short to tell are kept and counted.", _languages
    )
    duplicates: str = _key(
        "off", "Drop rows that repeat an earlier one: off, exact, near (exact ones too).", _choice(DUPLICATES), "exact"
    )
    near_threshold: float = field(
        default=0.8,
        metadata={
            "help": "Share of common word triples (Jaccard) from which two rows are near duplicates, 0.5 to 1.",
            "read": lambda key, value: _number(key, value, "a share from 0.5 to 1", SMALLEST_NEAR_THRESHOLD, 1),
            "on": None,
        },
    )
    max_value_share: float | None = _key(
        None,
        "Warn when one answer is more than this share of a source's answers; on: 0.99.",
        lambda key, value: _number(key, value, "a share above 0 and below 1, on or off", 1e-9, 1 - 1e-9),
        0.99,
    )
    personal_data: str = _key(
        "off",
        "E-mail addresses, phone numbers, IBANs, card numbers, …: off, report (count), drop (the rows).",
        _choice(PERSONAL_DATA),
        "report",
    )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any] | Sequence[str] | bool | str | None) -> CleanConfig:
        """Build the configuration from a recipe's ``clean:``.

        Args:
            values: a mapping of rules to settings (``on`` takes the rule's usual setting); a list of rules that are on;
                True for all rules that need no setting and drop nothing that is only unusual; None or False for none.

        Raises:
            UserError: an unknown rule, or a setting of another type or out of range; the sentence names ``clean.KEY``.
        """
        if values is None or values is False or values == "off":
            return cls()
        if values is True or values == "on":
            values = [name for name in cls.rules() if name not in _NOT_IN_ALL and _on(name) is not None]
        if isinstance(values, str):
            values = [values]
        if isinstance(values, Sequence):
            values = dict.fromkeys(values, True)
        if not isinstance(values, Mapping):
            raise UserError(f"clean must be on, off, a list of rules, or rules with their settings, not {values!r}.")
        return cls(**{_known(key): _read(key, value) for key, value in values.items()})

    @classmethod
    def rules(cls) -> tuple[str, ...]:
        """The names of all rules and settings, in the order in which they are applied."""
        return tuple(spec.name for spec in fields(cls))

    def for_rows(self) -> dict[str, Any]:
        """The settings that decide what becomes of a single row, as plain data; for cache keys."""
        return {name: value for name, value in self.to_dict().items() if name in _ROW_RULES}

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain data."""
        return asdict(self)


# Not part of ``clean: on``: what is unusually long is often wanted, so it goes only where that was asked for.
_NOT_IN_ALL = ("longer_than_mean",)


def _spec(key: str) -> Any:
    return next(spec for spec in fields(CleanConfig) if spec.name == key)


def _on(key: str) -> Any:
    return _spec(key).metadata["on"]


def _known(key: Any) -> str:
    rules = CleanConfig.rules()
    if key not in rules:
        hint = nearest(str(key), rules) or f": known are {', '.join(rules)}"
        raise UserError(f"clean.{key} is not a cleaning rule{hint}.")
    return str(key)


def _read(key: str, value: Any) -> Any:
    spec = _spec(_known(key))
    if value is None or value is False or str(value).lower() == "off":
        if key == "near_threshold":
            raise UserError("clean.near_threshold must be a share from 0.5 to 1: duplicates: exact turns it off.")
        return spec.default
    if (value is True or str(value).lower() == "on") and spec.metadata["on"] is not None:
        return spec.metadata["on"]
    return spec.metadata["read"](key, value)
