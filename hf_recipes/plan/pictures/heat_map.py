"""Memory over row length and micro-batch: a table whose cells are the heat map, the edge of fitting a line."""

from __future__ import annotations

from hf_recipes.core.escape import text
from hf_recipes.plan.pictures import words
from hf_recipes.plan.pictures.data import LengthGrid
from hf_recipes.plan.pictures.edge import fitting, largest_fitting

_PALEST, _DARKEST = 0.06, 0.62


def heat_map(grid: LengthGrid, limit_bytes: float) -> str:
    """A row for each length, a column for each micro-batch, and last the largest micro-batch that fits."""
    fits = fitting(grid, limit_bytes)
    width = len(grid.micro_batches)
    heads = "".join(f'<th scope="col">{size:,}</th>' for size in grid.micro_batches)
    body = ""
    for y, (tokens, most) in enumerate(zip(grid.tokens, largest_fitting(grid, limit_bytes), strict=True)):
        cells = "".join(_cell(grid, fits, limit_bytes, x, y) for x in range(width))
        last = words.NOTHING if most is None else f"{most:,}"
        body += f'<tr><th scope="row">{tokens:,}</th>{cells}<td class="most">{last}</td></tr>'
    return (
        f'<div class="scroll"><table class="heat"><caption>{_caption(grid, fits)}</caption><thead>'
        f'<tr><th rowspan="2" scope="col">tokens in a row</th><th colspan="{width}" scope="colgroup">micro-batch</th>'
        f'<th rowspan="2" scope="col">largest that fits</th></tr><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _caption(grid: LengthGrid, fits: list[list[bool]]) -> str:
    each = [cell for row in fits for cell in row]
    told = "GiB of one device at its peak"
    if not any(each):
        told += ": none of these fits."
    elif all(each):
        told += ": all of these fit."
    else:
        told += "; the line is the edge of fitting, what lies beyond it is hatched."
    if grid.chosen and grid.chosen[0] in grid.tokens and grid.chosen[1] in grid.micro_batches:
        told += " The frame is this plan."
    return told


def _cell(grid: LengthGrid, fits: list[list[bool]], limit: float, x: int, y: int) -> str:
    needed, here = grid.needed_bytes[y][x], fits[y][x]
    chosen = grid.chosen == (grid.tokens[y], grid.micro_batches[x])
    classes = [] if here else ["beyond"]
    if x and fits[y][x - 1] != here:
        classes.append("edge-left")
    if y and fits[y - 1][x] != here:
        classes.append("edge-top")
    strength = _PALEST + (_DARKEST - _PALEST) * max(needed, 0.0) / limit if here and limit > 0 else 0.0
    style = f' style="background:rgba(0,114,178,{strength:.2f})"' if here else ""
    told = words.gib(needed) if here else f'{words.gib(needed)}<span class="unseen"> does not fit</span>'
    title = f"{grid.tokens[y]:,} tokens × {grid.micro_batches[x]:,}: {words.gib(needed, 2)} GiB"
    shown = f'<b class="plan-mark">{told}</b>' if chosen else told
    return f'<td class="{" ".join(classes)}"{style} title="{text(title)}">{shown}</td>'
