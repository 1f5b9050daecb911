"""The options of the measurement, and of the strategy it is held against: the same for the verb and for the ranks."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.doctor.network.traffic import WEIGHED, StepFigures, messages_of

SMALLEST_BYTES, LARGEST_BYTES = 1 << 12, 1 << 26  # of the largest message: a curve is measured at two sizes or more
PATIENCE_SECONDS = 60.0
MOST_PATIENCE_SECONDS = 86_400.0
# Figures of a job, beside its strategy → the largest that is taken; whole numbers but for the time.
_MOST = {
    "parameters": 1e15,
    "trained_parameters": 1e15,
    "step_seconds": 1e9,
    "passes": 1e6,
    "layers": 1e5,
    "hidden_size": 1e7,
    "tokens": 1e9,
}
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
    parser.add_argument("--largest", metavar="SIZE", help="largest message (default 64MiB)")
    parser.add_argument("--patience", metavar="SECONDS", help="wait so long for the others (60)")
    parser.add_argument("--output", metavar="FILE", help="write the measurement there, as JSON")
    parser.add_argument("--json", action="store_true", help="print everything as JSON instead")


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """What the network is held against."""
    parser.add_argument("--strategy", metavar="NAME", help="can this strategy live with the network (zero3, ddp, tp …)")
    parser.add_argument("--parameters", metavar="N", help="of the model (7e9)")
    parser.add_argument("--trained_parameters", metavar="N", help="those that get gradients (default: all)")
    parser.add_argument("--step_seconds", metavar="SECONDS", help="what a step computes, without communication")
    parser.add_argument("--passes", metavar="N", help="gradient_accumulation_steps (default 1)")
    parser.add_argument("--layers", metavar="N", help="of the model")
    parser.add_argument("--hidden_size", metavar="N", help="of the model, for tp")
    parser.add_argument("--tokens", metavar="N", help="of a micro-batch, for tp")


def measuring(options: argparse.Namespace) -> Measuring:
    """Read by hand: argparse would put its own words around an error."""
    patience = PATIENCE_SECONDS
    if options.patience is not None:
        patience = _number("patience", options.patience, 0.001, MOST_PATIENCE_SECONDS)
    return Measuring(patience, LARGEST_BYTES if options.largest is None else _bytes(options.largest))


def refuse_figures(options: argparse.Namespace, why: str) -> None:
    """Raise `UserError` for the first figure of a job that was given, where none is used.

    Args:
        options: of `add_strategy`.
        why: how the sentence goes on after the figure's name.
    """
    for name in _MOST:
        if getattr(options, name) is not None:
            raise UserError(f"--{name} {why}")


def refuse_unweighed(strategy: str) -> None:
    """Raise `UserError` for a strategy that is not weighed: by its name, before anything is planned or measured."""
    if strategy not in WEIGHED:
        raise UserError(
            f"strategy: '{strategy}' is not weighed against a network{nearest(strategy, WEIGHED)}: give one of "
            f"{', '.join(WEIGHED)}."
        )


def chosen(options: argparse.Namespace) -> Chosen | None:
    """The strategy that was given by figures; None without one. Gradients and weights count two bytes (bf16).

    Raises:
        UserError: a figure is missing, or is none; or figures are given without a strategy.
    """
    if options.strategy is None:
        refuse_figures(options, "is a figure of a strategy: give that too (--strategy NAME).")
        return None
    refuse_unweighed(options.strategy)
    for name in ("parameters", "step_seconds"):
        if getattr(options, name) is None:
            raise UserError(f"--strategy {options.strategy} needs --{name} too (or give a recipe: --config).")
    parameters = _whole(options, "parameters", 1)
    trained = _whole(options, "trained_parameters", parameters)
    if trained > parameters:
        raise UserError(
            f"--trained_parameters: {options.trained_parameters} is more than --parameters {options.parameters}: give "
            "those of the model that get gradients."
        )
    figures = StepFigures(
        gradient_bytes=2.0 * trained,
        wide_gradient_bytes=2.0 * trained,
        weight_bytes=2.0 * parameters,
        passes=_whole(options, "passes", 1),
        layers=_whole(options, "layers", 1),
        hidden_bytes=2.0 * _whole(options, "hidden_size", 0) * _whole(options, "tokens", 0),
    )
    messages_of(options.strategy, figures)  # what a strategy needs besides is missed before anything is measured
    return Chosen(options.strategy, figures, _number("step_seconds", options.step_seconds, 1e-9, _MOST["step_seconds"]))


def _whole(options: argparse.Namespace, name: str, default: int) -> int:
    text = getattr(options, name)
    if text is None:
        return default
    value = _float(text)
    if not 1 <= value <= _MOST[name] or value != int(value):
        raise UserError(
            f"--{name}: '{text[:20]}' is no whole number from 1 to {_MOST[name]:.0e}: write it like 7e9 or 8."
        )
    return int(value)


def _number(name: str, text: str, least: float, most: float) -> float:
    value = _float(text)
    if not least <= value <= most:
        raise UserError(f"--{name}: '{text[:20]}' is no number from {least:g} to {most:g}: write it like 60 or 0.5.")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _bytes(text: str) -> int:
    digits = text.strip().lower().rstrip("bgikm")
    unit = text.strip().lower()[len(digits) :]
    try:
        size = float(digits) * _UNITS[unit]
    except (ValueError, KeyError):
        size = 0.0
    if not SMALLEST_BYTES <= size <= 2**34:
        raise UserError(f"--largest: '{text}' is no size from 4KiB to 16GiB: write it like 64MiB.")
    return int(size)


def options_for_ranks(options: argparse.Namespace) -> list[str]:
    """The options of the measurement, as a command line for the ranks."""
    given: dict[str, str | None] = {"--largest": options.largest, "--patience": options.patience}
    return [word for name, value in given.items() if value is not None for word in (name, value)]
