"""The options of the measurement, and of the strategy it is held against: the same for the verb and for the ranks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.doctor.network.traffic import StepFigures

SMALLEST_BYTES, LARGEST_BYTES = 1 << 10, 1 << 26
PATIENCE_SECONDS = 60.0
_UNITS = {"kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6, "gb": 10**9, "b": 1, "": 1}


@dataclass(frozen=True)
class Measuring:
    """How long to wait for the others, and the largest message, in bytes."""

    patience_seconds: float
    largest_bytes: int


@dataclass(frozen=True)
class Chosen:
    """A strategy given by figures: a job's messages and its computing time."""

    strategy: str
    figures: StepFigures
    compute_seconds: float


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """What is measured, and where it goes."""
    parser.add_argument("--largest", default="64MiB", metavar="SIZE", help="largest message (default 64MiB)")
    parser.add_argument(
        "--patience", default=f"{PATIENCE_SECONDS:g}", metavar="SECONDS", help="wait so long for the others (60)"
    )
    parser.add_argument("--output", metavar="FILE", help="write the measurement there, as JSON")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """What the network is held against."""
    parser.add_argument("--strategy", metavar="NAME", help="can this strategy live with the network (zero3, ddp, tp …)")
    parser.add_argument("--parameters", metavar="N", help="of the model (7e9)")
    parser.add_argument("--trained_parameters", metavar="N", help="those that get gradients (default: all)")
    parser.add_argument("--step_seconds", metavar="SECONDS", help="what a step computes, without communication")
    parser.add_argument("--passes", default="1", metavar="N", help="gradient_accumulation_steps (default 1)")
    parser.add_argument("--layers", metavar="N", help="of the model")
    parser.add_argument("--hidden_size", metavar="N", help="of the model, for tp")
    parser.add_argument("--tokens", metavar="N", help="of a micro-batch, for tp")


def measuring(options: argparse.Namespace) -> Measuring:
    """Read by hand: argparse would put its own words around an error."""
    return Measuring(_number(options, "patience"), _bytes(options.largest))


def chosen(options: argparse.Namespace) -> Chosen | None:
    """The strategy that was given by figures; None without one. Gradients and weights count two bytes (bf16).

    Raises:
        UserError: a figure is missing, or is none.
    """
    if options.strategy is None:
        return None
    for name in ("parameters", "step_seconds"):
        if getattr(options, name) is None:
            raise UserError(f"--strategy {options.strategy} needs --{name} too (or give a recipe: --config).")
    weights = 2.0 * _number(options, "parameters")
    trained = weights if options.trained_parameters is None else 2.0 * _number(options, "trained_parameters")
    width = 0.0
    if options.hidden_size is not None and options.tokens is not None:
        width = 2.0 * _number(options, "hidden_size") * _number(options, "tokens")
    figures = StepFigures(
        gradient_bytes=trained,
        wide_gradient_bytes=trained,
        weight_bytes=weights,
        passes=int(_number(options, "passes")),
        layers=1 if options.layers is None else int(_number(options, "layers")),
        hidden_bytes=width,
    )
    return Chosen(options.strategy, figures, _number(options, "step_seconds"))


def _number(options: argparse.Namespace, name: str) -> float:
    text = getattr(options, name)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise UserError(f"--{name}: '{text}' is no number above 0: write it like 7e9 or 0.5.")
    return value


def _bytes(text: str) -> int:
    digits = text.strip().lower().rstrip("bgikm")
    unit = text.strip().lower()[len(digits) :]
    try:
        size = float(digits) * _UNITS[unit]
    except (ValueError, KeyError):
        size = 0.0
    if not SMALLEST_BYTES <= size <= 2**34:
        raise UserError(f"--largest: '{text}' is no size from 1KiB to 16GiB: write it like 64MiB.")
    return int(size)


def options_for_ranks(options: argparse.Namespace) -> list[str]:
    """The options of the measurement, as a command line for the ranks."""
    given: dict[str, Any] = {"--largest": options.largest, "--patience": options.patience}
    return [word for name, value in given.items() for word in (name, str(value))]
