"""What a sweep goes over: command-line keys with several values, read into axes. Pure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.recipe.key_table import KeySpec
from hf_recipes.recipe.overlay import parse_overrides
from hf_recipes.recipe.validate import check_keys, coerce
from hf_recipes.recipe.yaml_lines import parse_scalar

BATCH, PRECISION = "batch", "precision"
ALIASES: dict[str, str] = {
    "lr": "learning_rate",
    "rank": "lora_r",
    "alpha": "lora_alpha",
    "targets": "lora_target_modules",
    "epochs": "num_train_epochs",
}
# What the sweep's own names decide: they cannot be given beside them.
DECIDES: dict[str, tuple[str, ...]] = {
    BATCH: ("per_device_train_batch_size", "gradient_accumulation_steps"),
    PRECISION: ("dtype", "bf16", "fp16"),
}
# Drawn evenly in the logarithm: what is tried of them is usually a factor apart.
LOG_KEYS = frozenset({"learning_rate", "weight_decay", "adam_epsilon", "loraplus_lr_ratio"})
# Where a run writes and when it stops: trials that differ in these alone are the same trial.
NOT_SWEPT = frozenset(
    {
        "output_dir",
        "run_name",
        "resume_from_checkpoint",
        "on_finish",
        "preemption_command",
        "time_limit",
        "num_processes",
        "report_to",
    }
)
PRECISIONS = ("fp32", "bf16", "fp16")

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_SPAN = re.compile(rf"^\s*({_NUMBER})\.\.({_NUMBER})(?::(\d+))?\s*$")
_OPEN, _CLOSE = "[{(", "]})"
_SPECS = {
    BATCH: KeySpec(BATCH, "", ("int",), None, 1, ""),
    PRECISION: KeySpec(PRECISION, "", ("str",), PRECISIONS, "fp32", ""),
}


@dataclass(frozen=True)
class Span:
    """Values from `low` to `high`: drawn, evenly or evenly in the logarithm, or `count` of them in equal steps."""

    low: float
    high: float
    log: bool
    whole: bool
    count: int | None = None

    def at(self, share: float) -> float | int:
        """The value a share from 0 to 1 of the way; numbers with three significant digits, which tell trials apart."""
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
        else:
            value = self.low + share * (self.high - self.low)
        if self.whole:
            return round(value)
        return min(max(float(f"{value:.3g}"), self.low), self.high)

    def steps(self) -> tuple[float | int, ...]:
        """Its `count` values, each once."""
        count = self.count or 1
        found = [self.at(index / (count - 1) if count > 1 else 0.0) for index in range(count)]
        return tuple(dict.fromkeys(found))

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g}"


@dataclass(frozen=True)
class Axis:
    """One key with its `values`, or with a `span` they are drawn from (then `values` is empty)."""

    key: str
    values: tuple[Any, ...] = ()
    span: Span | None = None


def read_axes(
    arguments: Sequence[str], table: Mapping[str, KeySpec], known: Sequence[str] = ()
) -> tuple[list[Axis], dict[str, Any]]:
    """Tell the keys to sweep over from those that are the same for all trials.

    Args:
        arguments: recipe keys of the command line. Values are apart by commas; those of keys that are lists or mappings
            by semicolons, or each a list within a YAML list; ``LOW..HIGH`` is a range, ``LOW..HIGH:N`` N values of it.
        table: the recipe keys there are.
        known: keys that stay axes with one value too: those of the sweep that is gone on with.

    Returns:
        The axes, and the keys with one value.

    Raises:
        UserError: a key that is unknown, cannot be swept, is given twice or beside what decides it, a value that is
            empty, of another type or given twice, a range of something else than numbers.
    """
    axes: list[Axis] = []
    fixed: dict[str, Any] = {}
    names: dict[str, str] = {}
    for name, value in parse_overrides(arguments).items():
        key = ALIASES.get(name, name)
        if key in names:
            raise UserError(f"--{name} and --{names[key]} are the same key: keep one.")
        names[key] = name
        axis = _read(key, name, value, table)
        if axis.span is None and len(axis.values) == 1 and key not in known:
            fixed[key] = axis.values[0]
            continue
        if key in NOT_SWEPT:
            raise UserError(f"--{name} is the same for all trials of a sweep: give one value.")
        axes.append(axis)
    for name in (BATCH, PRECISION):
        _check_decided(name, names)
    _check_nested(axes, names)
    return axes, fixed


def _check_decided(name: str, names: Mapping[str, str]) -> None:
    if name not in names:
        return
    others = ("gradient_accumulation_steps",) if name == BATCH else DECIDES[name]  # a micro-batch may be given
    for key in others:
        if key in names:
            raise UserError(f"--{names[key]} is decided by --{name}: keep one of them.")


def _check_nested(axes: Sequence[Axis], names: Mapping[str, str]) -> None:
    swept = {axis.key for axis in axes}
    for key in names:
        head = next((other for other in names if key.startswith(f"{other}.")), None)
        if head and {key, head} & swept:
            raise UserError(f"--{names[key]} is a part of --{names[head]}, which is given too: keep one of them.")


def _read(key: str, name: str, value: Any, table: Mapping[str, KeySpec]) -> Axis:
    spec = _SPECS.get(key) or table.get(key)
    head = key.partition(".")[0]
    if spec is None and (head == key or head not in table):
        raise UserError(
            f"--{name}: unknown key '{head}'{nearest(head, [*table, *ALIASES, *_SPECS])}; `hf-recipes sweep --help` "
            "lists the sweep's own flags, `hf-recipes sft --help-all` the recipe's keys."
        )
    if value is None or value == [] or (value is True and spec is not None and "bool" not in spec.kinds):
        raise UserError(f"--{name}: no value is given: write --{name} VALUE,VALUE.")
    if isinstance(value, str) and (found := _SPAN.match(value)):
        return Axis(key, span=_span(key, name, found, spec)) if not found[3] else _stepped(key, name, found, spec)
    values = [_fit(each, key, name, table) for each in _split(name, value, spec)]
    keys = [json.dumps(each, sort_keys=True, default=str) for each in values]
    if twice := next((each for index, each in enumerate(values) if keys[index] in keys[:index]), None):
        raise UserError(f"--{name}: {show(twice)} is given twice: keep one.")
    return Axis(key, tuple(values))


def _stepped(key: str, name: str, found: re.Match[str], spec: KeySpec | None) -> Axis:
    if not 2 <= int(found[3]) <= 10_000:
        raise UserError(f"--{name}: {found[3]} values of a range: give 2 or more.")
    return Axis(key, _span(key, name, found, spec).steps())


def _span(key: str, name: str, found: re.Match[str], spec: KeySpec | None) -> Span:
    low, high = float(found[1]), float(found[2])
    kinds = spec.kinds if spec else ("float",)
    if not {"int", "float"} & set(kinds):
        raise UserError(f"--{name}: a range is of numbers, and this key takes none: write the values out.")
    if not low < high:
        raise UserError(f"--{name}: the range {found[1]}..{found[2]} is empty: write LOW..HIGH.")
    log = key in LOG_KEYS
    if log and low <= 0:
        raise UserError(f"--{name}: the range {found[1]}..{found[2]} is drawn in the logarithm: begin above 0.")
    whole = "float" not in kinds
    if whole and not (low.is_integer() and high.is_integer()):
        raise UserError(f"--{name}: {found[1]}..{found[2]} is a range of whole numbers: end it at whole numbers.")
    return Span(low, high, log, whole, int(found[3]) if found[3] else None)


def _split(name: str, value: Any, spec: KeySpec | None) -> list[Any]:
    """The values given for a key, read but not yet checked."""
    takes_many = spec is not None and bool({"list", "dict"} & set(spec.kinds))
    if isinstance(value, list):
        if not takes_many:
            return [piece for item in value for piece in _split(name, item, spec)]
        return value if all(isinstance(item, list) for item in value) else [value]
    if not isinstance(value, str):
        return [value]
    if _is_open(value):
        raise UserError(f"--{name}: a bracket or a quote in '{value}' is not closed, or closed twice: write it anew.")
    pieces = split_outside(value, ";" if takes_many else ",")
    if any(not piece.strip() for piece in pieces):
        raise UserError(f"--{name}: a value is empty in '{value}': remove the separator, or write the value.")
    if takes_many and any(len(split_outside(piece, ",")) > 1 for piece in pieces):
        raise UserError(f"--{name} takes lists: write each in brackets, with semicolons between: '[a,b];[c]'.")
    return [parse_scalar(piece.strip()) for piece in pieces]


def split_outside(text: str, separator: str) -> list[str]:
    """Split at a separator that stands in no brackets and no quotes."""
    pieces, depth, quote, start = [], 0, "", 0
    for position, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in _OPEN:
            depth += 1
        elif letter in _CLOSE:
            depth -= 1
        elif letter == separator and depth <= 0:
            pieces.append(text[start:position])
            start = position + 1
    return [*pieces, text[start:]]


def _is_open(text: str) -> bool:
    """Whether brackets or quotes of a text do not come in pairs."""
    bare = re.sub(r"\"[^\"]*\"|'[^']*'", "", text)
    opened = [sum(bare.count(letter) for letter in letters) for letters in (_OPEN, _CLOSE)]
    return opened[0] != opened[1] or any(quote in bare for quote in "\"'")


def _fit(value: Any, key: str, name: str, table: Mapping[str, KeySpec]) -> Any:
    """A value in its key's type; of a nested key, whose type only the rooms know, as it is."""
    if key == BATCH and not (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        raise UserError(f"--{name}: {value!r} is no number of rows in a step: give whole numbers of 1 or more.")
    if key in _SPECS:
        return coerce(value, _SPECS[key], f"--{name}")
    if key not in table:
        return value
    return check_keys({key: value}, table, lambda _: f"--{name}").get(key, value)


def show(value: Any) -> str:
    """A key's value as it is written in tables and names: ``2e-05``, ``q_proj+v_proj``, ``off``."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return "+".join(map(show, value))
    if isinstance(value, dict):
        return ",".join(f"{key}:{show(item)}" for key, item in value.items())
    return "none" if value is None else str(value)


def short(key: str) -> str:
    """The short name of a key where it has one."""
    return next((alias for alias, name in ALIASES.items() if name == key), key)
