"""A plan as one HTML file that needs nothing from outside and runs no script."""

from __future__ import annotations

import functools
import time
from pathlib import Path

from hf_recipes.core.escape import text
from hf_recipes.core.files import write_text
from hf_recipes.core.html import document, facts, note, section, table
from hf_recipes.core.version import __version__
from hf_recipes.plan.pictures import words
from hf_recipes.plan.pictures.data import PlanView
from hf_recipes.plan.pictures.device_figure import device_figure
from hf_recipes.plan.pictures.heat_map import heat_map
from hf_recipes.plan.pictures.memory_figure import memory_figure

# The browser itself refuses every request and every script.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def write_page(view: PlanView, file: Path) -> Path:
    """Write `render_page` into `file`, whole or not at all, and return it."""
    write_text(file, render_page(view))
    return file


def render_page(view: PlanView) -> str:
    """The page of one plan as a string."""
    parts = [
        section("Memory by part", memory_figure(view)) if view.bars else "",
        section("Time and cost", device_figure(view.devices, view.currency)) if view.devices else "",
        section("Length and micro-batch", heat_map(view.grid, view.limit_bytes)) if view.grid else "",
        section("Parameters by part", _parameters(view)) if view.parameters else "",
        section("Not taken, and why", _not_taken(view)) if view.not_taken else "",
        section("Notes", "".join(f"<p>{text(each)}</p>" for each in view.notes)) if view.notes else "",
    ]
    body = (
        f"<main><header>{_verdict(view)}<h1>{text(view.title)}</h1></header>{_facts(view)}{''.join(parts)}"
        f"{note(words.UNIT)}<footer>hf_recipes {text(__version__)}, "
        f"written {time.strftime('%Y-%m-%d %H:%M:%S %Z')}</footer></main>"
    )
    return document(f"{view.title}: plan", body, policy=_POLICY, styles=[_style()])


def _verdict(view: PlanView) -> str:
    css, word = ("ok", "Fits.") if view.fits else ("bad", "Does not fit.")
    if not view.bars:
        css, word = "open", ""
    return f'<p class="verdict {css}"><b>{word}</b> {text(view.sentence)}</p>'


def _facts(view: PlanView) -> str:
    shown = [(name, text(told)) for name, told in view.facts.items()]
    return f"<section>{facts(shown)}</section>" if shown else ""


def _parameters(view: PlanView) -> str:
    whole = sum(view.parameters.values())
    rows = [
        [
            text(words.words(part)),
            f"{count:,}",
            f"{text(words.share(count, whole))}"
            f'<span class="bar"><span style="width:{100 * count / max(whole, 1):.2f}%"></span></span>',
        ]
        for part, count in view.parameters.items()
        if count > 0
    ]
    return table(["part", "parameters", "share"], [*rows, ["<b>all</b>", f"<b>{whole:,}</b>", ""]], "figures narrow")


def _not_taken(view: PlanView) -> str:
    return table(["strategy", "why not"], ([text(name), text(why)] for name, why in view.not_taken))


@functools.cache
def _style() -> str:
    return (Path(__file__).parent / "plan.css").read_text(encoding="utf-8")
