"""Axes → the points that are tried: all of a grid, or drawn ones. Pure."""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from collections.abc import Sequence
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import short_digest
from hf_recipes.sweep.axes import Axis, short, show

Point = dict[str, Any]
MOST_TRIALS = 1000
_REPLICATES = "seed"  # its values are repetitions of a point, not a choice
_LONGEST_NAME = 80


def grid(axes: Sequence[Axis]) -> list[Point]:
    """Every combination, the last axis fastest.

    Raises:
        UserError: a range without a number of values, or more combinations than anybody waits for.
    """
    for axis in axes:
        if axis.span:
            raise UserError(
                f"--{short(axis.key)}: a grid needs values: write {axis.span}:5 for five of them, or --search random "
                "--trials N."
            )
    count = math.prod(len(axis.values) for axis in axes)
    if count > MOST_TRIALS:
        raise UserError(
            f"The grid has {count:,} trials: write --search random --trials N to draw N of them, or give fewer values."
        )
    keys = [axis.key for axis in axes]
    return [dict(zip(keys, values, strict=True)) for values in itertools.product(*(axis.values for axis in axes))]


def random_points(axes: Sequence[Axis], trials: int, seed: int) -> list[Point]:
    """`trials` different points (Bergstra and Bengio 2012), drawn so that more of them begin with the same ones; each
    with every seed where seeds are given. Fewer where there are not so many.

    Args:
        axes: values are drawn evenly, ranges as their `Span` says.
        trials: how many points, seeds not counted.
        seed: of the draws.
    """
    drawn = [axis for axis in axes if axis.key != _REPLICATES]
    repeated = [axis for axis in axes if axis.key == _REPLICATES]
    found: dict[str, Point] = {}
    generator = random.Random(seed)
    for _ in range(100 * trials + 1000):
        if len(found) == trials or len(found) == _possible(drawn):
            break
        point = {axis.key: _draw(axis, generator) for axis in drawn}
        found.setdefault(identity(point), point)
    return [{**point, **extra} for point in found.values() for extra in grid(repeated)]


def one_by_one(axes: Sequence[Axis]) -> list[Point]:
    """Points in which every value, and both ends of every range, occur: the others at their first."""
    ends = {axis.key: [axis.span.at(0), axis.span.at(1)] if axis.span else list(axis.values) for axis in axes}
    first = {key: values[0] for key, values in ends.items()}
    found = [{**first, key: value} for key, values in ends.items() for value in values]
    return list({identity(point): point for point in found}.values())


def _possible(axes: Sequence[Axis]) -> float:
    return math.inf if any(axis.span for axis in axes) else math.prod(len(axis.values) for axis in axes)


def _draw(axis: Axis, generator: random.Random) -> Any:
    return axis.span.at(generator.random()) if axis.span else generator.choice(axis.values)


def identity(point: Point) -> str:
    """Equal for equal points."""
    return json.dumps(point, sort_keys=True, default=str)


def trial_name(point: Point) -> str:
    """The name of a point's run directory: its keys and values; with a hash where those are too long, or hold what no
    file name should."""
    told = "_".join(
        f"{short(key)}{'-' if _begins_with_word(key, value) else ''}{show(value)}" for key, value in point.items()
    )
    name = re.sub(r"[^A-Za-z0-9.+_-]+", "-", told)
    if name == told and len(name) <= _LONGEST_NAME and not name.startswith((".", "-")):
        return name
    return f"{name[: _LONGEST_NAME - 8].strip('.-')}-{short_digest(identity(point))[:7]}"


def _begins_with_word(key: str, value: Any) -> bool:
    return not show(value)[:1].isdigit()
