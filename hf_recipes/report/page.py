"""`report.html`: one file without outside assets, from what the run directory holds."""

from __future__ import annotations

import time
from pathlib import Path

from hf_recipes import __version__
from hf_recipes.core.files import write_text
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report import sections
from hf_recipes.report.comparison import evaluation
from hf_recipes.report.curves import write_curves
from hf_recipes.report.escape import text
from hf_recipes.report.read_run import RunRecord, read_run

_STYLE = Path(__file__).with_name("style.css")


def write_report(run: RunDirectory) -> Path:
    """Write ``report.html`` and ``curves.png`` into the run directory and return the page's path.

    Parts whose files are missing say so; nothing is loaded but the run's own JSON files.
    """
    write_curves(run)
    page = run.path / "report.html"
    write_text(page, render_page(read_run(run)))
    return page


def render_page(record: RunRecord) -> str:
    """The page as a string."""
    css_class, word, sentence = sections.verdict(record)
    name = record.run.get("name") or record.path.resolve().name
    problems = "".join(f'<p class="wrong">{text(problem)}</p>' for problem in record.problems)
    body = [
        f'<header><h1>{text(name)} <span class="badge {css_class}">{text(word)}</span></h1>',
        f"<p>{text(sentence)}</p>{problems}{sections.headline(record)}</header>",
        sections.curves(record),
        evaluation(record),
        sections.alarm_list(record),
        sections.what_ran(record),
        sections.data_ledger(record),
        sections.checkpoints(record),
        sections.recipe(record),
        f"<footer>hf_recipes {text(__version__)}, written {time.strftime('%Y-%m-%d %H:%M %Z')}</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{text(name)}: training report</title><style>{_STYLE.read_text(encoding='utf-8')}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )
