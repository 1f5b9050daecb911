"""Plain-text tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence


def render_table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Align `rows` under `headers`: columns of figures to the right, columns of words to the left, two spaces apart."""
    cells = [[str(cell) for cell in row] for row in (headers, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(headers))]
    figures = [all(_is_figure(row[column]) for row in cells[1:]) for column in range(len(headers))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, figures, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _is_figure(cell: str) -> bool:
    """Whether a cell is empty or begins as numbers do (``12``, ``-0.3``, ``+1.5 %``, ``99.1%``)."""
    return not cell or cell.lstrip("+-−±<≤>≥~")[:1].isdigit()
