"""A histogram → SVG bars. Pure; colours are CSS classes, so that light and dark themes hold."""

from __future__ import annotations

from hf_recipes.data.inspection.histogram import Histogram

WIDTH, HEIGHT = 480, 220
LEFT, RIGHT, TOP, BOTTOM = 8, 12, 56, 26
MAX_LABELS = 8


def bar_chart(title: str, lengths: Histogram, max_length: int | None = None) -> str:
    """The histogram as ``<svg>``, a bar a bin with its numbers on hover; `max_length` as a dashed line where it lies
    within, else as words. `title` is trusted text."""
    low, high, highest = lengths.edges[0], lengths.edges[-1], max(lengths.counts) or 1
    scale = (WIDTH - LEFT - RIGHT) / (high - low)
    bottom = HEIGHT - BOTTOM
    facts = ", ".join(f"{name} {value}" for name, value in lengths.percentiles.items())
    beyond = f", max_length {max_length} beyond" if max_length is not None and max_length > high else ""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}: {facts}{beyond}">',
        f'<text class="title" x="{LEFT}" y="16">{title}</text><text x="{LEFT}" y="32">{facts}{beyond}</text>',
    ]
    for count, start, end in zip(lengths.counts, lengths.edges[:-1], lengths.edges[1:], strict=True):
        height = count / highest * (bottom - TOP)
        x, width = LEFT + (start - low) * scale, max((end - start) * scale - 1, 0.5)
        parts.append(
            f'<rect class="bar" x="{x:.1f}" y="{bottom - height:.1f}" width="{width:.1f}" height="{height:.1f}">'
            f"<title>{start} to {end - 1} tokens: {count} samples</title></rect>"
        )
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    every = -(-len(lengths.edges) // MAX_LABELS)
    for edge in lengths.edges[::every]:
        anchor = "start" if edge == low else "middle"
        x = LEFT + (edge - low) * scale
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{edge}</text>')
    if max_length is not None and low <= max_length <= high:
        parts.append(_limit(LEFT + (max_length - low) * scale, max_length))
    return "".join([*parts, "</svg>"])


def _limit(x: float, max_length: int) -> str:
    return (
        f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 6}" y2="{HEIGHT - BOTTOM}"/>'
        f'<text class="limit-text" x="{x:.1f}" y="{TOP - 9}" text-anchor="end">max_length {max_length}</text>'
    )
