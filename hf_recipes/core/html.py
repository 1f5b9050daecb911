"""A page that is one file: data → HTML fragments in the house's look. Everything foreign passes through `text`."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_recipes.core.escape import text


def document(title: str, body: str, *, policy: str, styles: Sequence[str] = ()) -> str:
    """A whole HTML file.

    Args:
        title: text.
        body: HTML; scripts, where there are any, at its end.
        policy: content security policy, which the browser itself holds the page to.
        styles: rules besides the house's own, which they follow.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(title)}</title><style>{''.join((_house_style(), *styles))}</style></head>"
        f"<body>{body}</body></html>\n"
    )


@functools.cache
def _house_style() -> str:
    return (Path(__file__).parent / "style.css").read_text(encoding="utf-8")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], css: str = "") -> str:
    """A table in a box of its own that scrolls sideways on a phone. `rows` hold HTML, `headers` text."""
    head = "".join(f"<th>{text(header)}</th>" for header in headers)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table class="{css}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of named facts. The second of each pair is HTML."""
    items = "".join(f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{items}</dl>'


def section(title: str, body: str) -> str:
    """One part of the page under its heading."""
    return f"<section><h2>{text(title)}</h2>{body}</section>"


def folded(title: str, body: str) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{text(title)}</summary>{body}</details>"


def note(sentence: str) -> str:
    """A quiet sentence, such as what is not there."""
    return f'<p class="absent">{text(sentence)}</p>'
