"""Where in the grid of lengths and micro-batches fitting ends."""

from __future__ import annotations

from collections.abc import Sequence

from hf_recipes.plan.pictures.data import LengthGrid

Point = tuple[int, int]


def fitting(grid: LengthGrid, limit_bytes: float) -> list[list[bool]]:
    """Whether each cell fits, by length and micro-batch."""
    return [[needed <= limit_bytes for needed in row] for row in grid.needed_bytes]


def largest_fitting(grid: LengthGrid, limit_bytes: float) -> list[int | None]:
    """For each length the largest micro-batch that fits; None where not even the smallest does."""
    return [
        max((size for size, fits in zip(grid.micro_batches, row, strict=True) if fits), default=None)
        for row in fitting(grid, limit_bytes)
    ]


def edge(fits: Sequence[Sequence[bool]]) -> list[tuple[Point, Point]]:
    """The line between cells that fit and cells that do not, as pieces from (x, y) to (x, y).

    Cell (row, column) reaches from (column, row) to (column + 1, row + 1).
    """
    pieces = []
    for y, row in enumerate(fits):
        for x, here in enumerate(row):
            if x and row[x - 1] != here:
                pieces.append(((x, y), (x, y + 1)))
            if y and fits[y - 1][x] != here:
                pieces.append(((x, y), (x + 1, y)))
    return pieces
