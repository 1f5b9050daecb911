"""`report.html`: one file that needs nothing from outside, from what the run directory holds."""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.escape import script_json, text
from hf_recipes.core.files import write_text
from hf_recipes.core.html import document
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.core.version import __version__
from hf_recipes.report import overlay, sections
from hf_recipes.report.chart_data import chart_data
from hf_recipes.report.comparison import evaluation
from hf_recipes.report.curves import write_curves
from hf_recipes.report.overfit_result import overfit_result
from hf_recipes.report.planned import planned
from hf_recipes.report.read_run import RunRecord, read_run
from hf_recipes.report.samples import samples
from hf_recipes.report.verdict import verdict

_HERE = Path(__file__).parent
# The browser itself refuses every request; only a page that follows a run may ask its own server for news.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src "


@dataclass(frozen=True)
class Content:
    """What a page shows: HTML above and below the charts, and the charts' data."""

    title: str
    head: str
    data: dict[str, Any]
    rest: str


def write_report(run: RunDirectory) -> Path:
    """Write ``report.html`` and ``curves.png`` into the run directory and return the page's path.

    Parts whose files are missing say so; nothing is loaded but the run's own JSON files.
    """
    return write_record(read_run(run))


def write_record(record: RunRecord) -> Path:
    """`write_report` of a run that has been read."""
    write_curves(record)
    return write_page(record)


def write_page(record: RunRecord) -> Path:
    """Write ``report.html`` alone, whole or not at all."""
    page = record.path / "report.html"
    write_text(page, render_page(record))
    return page


def render_page(record: RunRecord) -> str:
    """The page of one run as a string."""
    return assemble(content([record]))


def render_comparison(records: Sequence[RunRecord]) -> str:
    """The page of several runs, their curves overlaid."""
    return assemble(content(records))


def content(records: Sequence[RunRecord]) -> Content:
    """What the page of one or several runs shows."""
    return _one(records[0]) if len(records) == 1 else _several(records)


def _one(record: RunRecord) -> Content:
    stands = verdict(record)
    name = record.run.get("name") or record.name
    head = (
        f'<p class="verdict {stands.css}"><b>{text(stands.word)}</b> {text(stands.sentence)}</p>'
        f"<h1>{text(name)} <small>{text(record.path)}</small></h1>"
        f"{sections.problems(record.problems)}{sections.tiles(record)}"
    )
    rest = [
        sections.alarm_list(record),
        evaluation(record),
        samples(record),
        sections.data_ledger(record),
        sections.checkpoints(record),
        planned(record),
        overfit_result(record),
        sections.recipe(record),
        sections.environment(record),
    ]
    return Content(str(name), head, chart_data([(record.name, record.history)]), "".join(rest))


def _several(records: Sequence[RunRecord]) -> Content:
    names = overlay.run_names(records)
    rest = [overlay.numbers(records), overlay.recipe_differences(records)]
    for name, record in zip(names, records, strict=True):
        if rang := record.history.alarms():
            rest.append(sections.section(f"Alarms of {name}", sections.alarm_table(rang)))
    histories = [(name, record.history) for name, record in zip(names, records, strict=True)]
    head = f"{overlay.verdicts(records)}<h1>{len(records)} runs</h1>"
    return Content(" · ".join(names), head, chart_data(histories), "".join(rest))


def assemble(shown: Content, version: str = "") -> str:
    """A whole HTML file; with a `version`, one that asks its server for newer content."""
    data = {**shown.data, "version": version}
    connect = "self" if version else "none"
    body = (
        f'<main><header id="head">{shown.head}</header>{_CHARTS}<div id="rest">{shown.rest}</div>'
        f"<footer>hf_recipes {text(__version__)}, written {time.strftime('%Y-%m-%d %H:%M:%S %Z')}; "
        "charts by Plotly.js (MIT licence)</footer></main>"
        f'<script type="application/json" id="data">{script_json(data)}</script>'
        f"<script>{plotly_script()}</script><script>{_own('page.js')}</script>"
    )
    return document(f"{shown.title}: training report", body, policy=f"{_POLICY}'{connect}'", styles=[_own("style.css")])


_CHARTS = (
    '<section id="curves"><h2>Curves</h2><div class="tools">'
    '<label>smoothing <input id="smoothing" type="range" min="0" max="0.99" step="0.01" value="0">'
    '<output id="weight">off</output></label><span class="zoom">'
    '<button data-factor="1" data-shift="-0.5" aria-label="earlier steps" title="earlier steps">‹</button>'
    '<button data-factor="2" data-shift="0" aria-label="zoom out" title="zoom out">−</button>'
    '<button data-factor="0.5" data-shift="0" aria-label="zoom in" title="zoom in">+</button>'
    '<button data-factor="1" data-shift="0.5" aria-label="later steps" title="later steps">›</button>'
    '<button id="whole" hidden>whole run</button></span>'
    '<span id="link" class="absent"></span></div>'
    '<div class="charts" id="charts"></div>'
    '<details id="others" hidden><summary>other logged numbers</summary>'
    '<div class="charts" id="folded"></div></details>'
    '<noscript><p class="absent">The charts need JavaScript; curves.png shows them without.</p></noscript>'
    '<p class="absent" id="hint"></p></section>'
)


@functools.cache
def _own(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


@functools.cache
def plotly_script() -> str:
    """Plotly's own script, from the installed `plotly` package, which is not imported for it."""
    found = importlib.util.find_spec("plotly")
    script = Path(found.origin).parent / "package_data" / "plotly.min.js" if found and found.origin else None
    if script is None or not script.is_file():
        raise UserError("The report needs the package plotly (6 or newer) for its charts: pip install 'plotly>=6'.")
    return script.read_text(encoding="utf-8")
