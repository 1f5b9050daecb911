"""The parts of memory in a fixed order, each with a colour of its own in every picture."""

from __future__ import annotations

from collections.abc import Sequence

from hf_recipes.plan.pictures.data import MemoryBar

# Okabe and Ito's palette ("Color Universal Design", 2008) and, for further parts, Paul Tol's muted one ("Colour
# Schemes", SRON, 2021), told apart by the colour-blind too; greys for what is no tensor.
_COLOURS = {
    "weights": "#0072b2",
    "weight_copies": "#332288",
    "gradients": "#e69f00",
    "optimizer": "#cc79a7",
    "activations": "#009e73",
    "logits": "#d55e00",
    "cache": "#882255",
    "temporaries": "#f0e442",
    "buffers": "#56b4e9",
    "fragmentation": "#b6bcc4",
    "context": "#7d8590",
}
_FURTHER = ("#44aa99", "#ddcc77", "#117733", "#999933", "#aa4499")


def parts_of(bars: Sequence[MemoryBar]) -> list[str]:
    """All parts that hold anything in any of the bars: the known in their order, then others in order of first sight,
    and last what is no tensor."""
    found = list(dict.fromkeys(part for bar in bars for part, size in bar.parts.items() if size > 0))
    order = list(_COLOURS)
    tensors, rest = order[:-2], order[-2:]
    others = [part for part in found if part not in order]
    return [part for part in (*tensors, *others, *rest) if part in found]


def colours(parts: Sequence[str]) -> dict[str, str]:
    """Part → colour as ``#rrggbb``."""
    others = [part for part in parts if part not in _COLOURS]
    return {part: _COLOURS.get(part) or _FURTHER[others.index(part) % len(_FURTHER)] for part in parts}


def ink_on(colour: str) -> str:
    """Black or white, whichever stands out more on a colour (relative luminance of WCAG 2, section 1.4.3)."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"
