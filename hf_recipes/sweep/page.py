"""`sweep.html`: table and picture in one file that needs nothing from outside and runs no script."""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from hf_recipes.core.escape import text
from hf_recipes.core.files import write_text
from hf_recipes.core.html import document, note, section, table
from hf_recipes.core.version import __version__
from hf_recipes.sweep.table import Row, cells, ends

# The browser itself refuses every request and every script.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = "img.sweep { max-width: 100%; height: auto; background: #fff; } tr.best td { font-weight: 700; }"


def write_page(path: Path, title: str, rows: Sequence[Row], metric: str, sentences: Sequence[str], png: Path) -> None:
    """Write the page beside the picture."""
    heads, lines = cells(rows, metric)
    body_rows = [
        [_link(row, line[0]), *(f"<b>{text(cell)}</b>" if row.best else text(cell) for cell in line[1:])]
        for row, line in zip(rows, lines, strict=True)
    ]
    told = ends(rows)
    parts = [
        "".join(f"<p>{text(sentence)}</p>" for sentence in sentences),
        section("Picture", picture(png, title)),
        section("Trials", table(["trial", *heads[1:]], body_rows, "figures")),
        section("Otherwise than well", table(["trial", "end"], ([text(a), text(b)] for a, b in told))) if told else "",
    ]
    write_text(path, _page(title, "".join(parts)))


def picture(png: Path, title: str) -> str:
    """The picture within the page; a sentence where there is none."""
    if not png.is_file():
        return note("No picture was drawn.")
    data = base64.b64encode(png.read_bytes()).decode("ascii")
    return f'<img class="sweep" alt="{text(title)}" src="data:image/png;base64,{data}">'


def _link(row: Row, mark: str) -> str:
    """To the report of the trial's own run, which lies beside this page."""
    name = f"{text(row.name)}{' ★' if mark else ''}"
    if row.outcome.state in ("waiting", "left out"):
        return name
    return f'<a href="trials/{quote(row.name)}/report.html">{name}</a>'


def _page(title: str, body: str) -> str:
    written = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    whole = (
        f"<main><header><h1>{text(title)}</h1></header>{body}"
        f"<footer>hf_recipes {text(__version__)}, written {written}</footer></main>"
    )
    return document(title, whole, policy=_POLICY, styles=[_STYLE])
