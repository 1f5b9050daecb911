"""All models' figures side by side, with the differences to the one they are compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hf_recipes.evaluation.bootstrap import Difference, Sums, figure, paired_difference
from hf_recipes.evaluation.gate import FORGETTING
from hf_recipes.evaluation.measures import GENERAL, Line, Measure, measures_of
from hf_recipes.evaluation.task_lines import by_sample


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Args:
        name, label, unit, aliases: see `measures.Measure`.
        values: by model; None where its lines do not ask the question.
        differences: by model, to the reference; none where rows or tokens are not the same, or for times.
    """

    name: str
    label: str
    unit: str
    values: dict[str, float | None]
    differences: dict[str, Difference]
    aliases: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON-like data."""
        return {**asdict(self), "aliases": list(self.aliases)}


def figures_of(
    lines: Mapping[str, Sequence[Line]], reference: str, format_spec: Mapping[str, Any] | None = None
) -> list[Figure]:
    """Measure every model, and compare it with `reference`.

    Args:
        lines: of each model; rows are paired by their ``key``.
        reference: the model to compare with, one of `lines`.
        format_spec: the format that answers were to have.
    """
    lines = {side: by_sample(some) for side, some in lines.items()}
    found = []
    for measure in measures_of([line for some in lines.values() for line in some], format_spec):
        one = _figure(measure, lines, reference)
        found.append(one)
        if measure.name == GENERAL:
            found += _forgetting(one, reference)
    return found


def gate_figures(figures: Sequence[Figure]) -> dict[str, dict[str, float | None]]:
    """Values by name, aliases included, for `gate.check_gate`."""
    return {name: figure.values for figure in figures for name in (figure.name, *figure.aliases)}


def _figure(measure: Measure, lines: Mapping[str, Sequence[Line]], reference: str) -> Figure:
    keys: dict[str, list[str]] = {}
    rows: dict[str, Sums] = {}
    for side, some in lines.items():
        own = [line for line in some if line["part"] in measure.parts]
        keys[side] = [line["key"] for line in own]
        rows[side] = np.array([measure.contributions(line) for line in own], dtype=np.float64)
    values = {side: _value(measure, some) for side, some in rows.items()}
    differences = {
        side: paired_difference(*_asked(rows[reference], some), measure.statistic)
        for side, some in rows.items()
        if side != reference and measure.compared and keys[side] == keys[reference] and some.any()
    }
    return Figure(measure.name, measure.label, measure.unit, values, differences, measure.aliases)


def _asked(reference: Sums, other: Sums) -> tuple[Sums, Sums]:
    """The rows that ask the question of at least one of the two."""
    asked = reference.any(axis=1) | other.any(axis=1)
    return reference[asked], other[asked]


def _value(measure: Measure, rows: Sums) -> float | None:
    if not len(rows) or not rows.any():
        return None
    return figure(rows, measure.statistic)


def _forgetting(general: Figure, reference: str) -> list[Figure]:
    """The rise of the loss on general text over the reference, as a figure of its own, which gates ask for."""
    if not general.differences:
        return []
    rises: dict[str, float | None] = {
        side: general.differences[side].value if side in general.differences else None
        for side in general.values
        if side != reference
    }
    label = f"forgetting (its rise over {reference})"
    return [Figure(FORGETTING, label, "rise", rises, general.differences)]
