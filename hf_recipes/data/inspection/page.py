"""An `Inspection` as one page without outside assets: verdicts first, samples that can be searched last."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from hf_recipes.core.version import __version__
from hf_recipes.data.inspection import account
from hf_recipes.data.inspection.account import Table
from hf_recipes.data.inspection.batches import BatchView, SampleView
from hf_recipes.data.inspection.chart import bar_chart
from hf_recipes.data.inspection.facts import Inspection, TokenShare
from hf_recipes.data.inspection.terminal import batch_line, batch_note, sample_line, template_lines

_HERE = Path(__file__).parent
# Nothing is loaded and nothing sent, whatever the data holds.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
# Not allowed in HTML or not encodable as UTF-8: controls but tab and line feed, lone surrogates, noncharacters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_FIGURE = re.compile(r"([\d.,]+%?( \([\d.]+%\))?)?")


def escape(value: object) -> str:
    """Any value as text that is safe inside an element and inside a quoted attribute."""
    return html.escape(_FORBIDDEN.sub("�", str(value)), quote=True)


def render_page(inspection: Inspection) -> str:
    """The page as a string."""
    name = escape(inspection.recipe or "data")
    body = [
        f"<header><h1>{name}: what is trained on</h1>",
        f'<p class="quiet">tokenizer of {escape(inspection.model)}</p></header>' if inspection.model else "</header>",
        _section("Verdict", _verdicts(inspection)),
        _tiles(inspection),
        _account(inspection),
        _lengths(inspection),
        _edges(inspection),
        _section("Template and tokens", "".join(f"<p>{escape(line)}</p>" for line in template_lines(inspection))),
        _samples(inspection),
        f"<footer>hf_recipes {escape(__version__)}</footer>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{name}: inspection</title><style>{_asset('page.css')}</style></head>"
        f"<body><main>{''.join(body)}</main><script>{_asset('page.js')}</script></body></html>\n"
    )


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _verdicts(inspection: Inspection) -> str:
    items = [
        f'<li class="{verdict.severity}"><b>{verdict.severity}</b>{escape(verdict.sentence)}</li>'
        for verdict in inspection.verdicts
    ]
    if not inspection.stops:
        items.insert(0, '<li class="ok"><b>ok</b>Nothing that should stop training.</li>')
    return f'<ul class="verdicts">{"".join(items)}</ul>'


def _tiles(inspection: Inspection) -> str:
    train, held_out = inspection.report["train"], inspection.report["eval"]
    learned = train["supervised_tokens"] / train["tokens"] if train["tokens"] else 0.0
    facts = [
        ("samples to train on", f"{train['rows']:,}"),
        ("held out", f"{held_out['rows']:,}"),
        ("tokens", f"{train['tokens']:,}"),
        ("of them learned", f"{learned:.1%}"),
        ("padding over an epoch", f"{inspection.padding_share:.1%}"),
    ]
    items = "".join(f"<div><span>{escape(name)}</span><strong>{escape(value)}</strong></div>" for name, value in facts)
    return f'<div class="tiles">{items}</div>'


def _account(inspection: Inspection) -> str:
    report = inspection.report
    tables = [
        ("What became of every row", account.source_table(report)),
        ("Dropped and changed", account.event_table(report)),
        ("Shares of the training set", account.share_table(report)),
        ("Duplicates, and eval samples that stand in training", account.likeness_table(report)),
        ("Noticed, and left as it is", account.note_table(report)),
    ]
    parts = [f"<h3>{escape(title)}</h3>{_table(table)}" for title, table in tables if table.rows]
    return _section("Sources", "".join(parts))


def _table(table: Table) -> str:
    figures = [_is_figures([str(row[column]) for row in table.rows]) for column in range(len(table.headers))]
    head = "".join(_cell("th", header, figure) for header, figure in zip(table.headers, figures, strict=True))
    body = "".join(
        f"<tr>{''.join(_cell('td', cell, figure) for cell, figure in zip(row, figures, strict=True))}</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _is_figures(cells: Sequence[str]) -> bool:
    return any(cells) and all(map(_FIGURE.fullmatch, cells))


def _cell(element: str, value: object, figure: bool) -> str:
    css = ' class="figure"' if figure else ""
    return f"<{element}{css}>{escape(value)}</{element}>"


def _lengths(inspection: Inspection) -> str:
    tokens = inspection.tokens
    charts = [
        bar_chart("Tokens a sample", tokens.lengths, inspection.max_length),
        bar_chart("Learned tokens a sample", tokens.learned),
    ]
    scanned = ""
    if tokens.rows < tokens.of_rows:
        scanned = f'<p class="quiet">{tokens.rows:,} evenly spaced rows out of {tokens.of_rows:,}</p>'
    return _section("Lengths", f'<div class="pair">{"".join(f"<div>{chart}</div>" for chart in charts)}</div>{scanned}')


def _edges(inspection: Inspection) -> str:
    tokens = inspection.tokens
    if not tokens.answers:
        return ""
    sides = [("First tokens", tokens.first_tokens), ("Last tokens", tokens.last_tokens)]
    tables = "".join(f"<div><h3>{title}</h3>{_table(_token_table(side))}</div>" for title, side in sides)
    counted = f'<p class="quiet">{tokens.answers:,} answers in {tokens.conversations:,} conversations</p>'
    return _section("What answers begin and end with", f'<div class="pair">{tables}</div>{counted}')


def _token_table(tokens: Iterable[TokenShare]) -> Table:
    rows = [[repr(token.text), token.token_id, token.count, f"{token.share:.1%}"] for token in tokens]
    return Table(["token", "id", "answers", "share"], rows)


def _samples(inspection: Inspection) -> str:
    if not inspection.batches:
        return ""
    search = (
        '<div class="search"><input id="query" type="search" placeholder="search text, file:row or source" '
        'aria-label="search the samples"><span id="shown" class="quiet"></span></div>'
    )
    batches = "".join(_batch(batch, inspection) for batch in inspection.batches)
    note = f'<p class="quiet">{escape(batch_note(inspection))}; <mark>marked text</mark> is learned</p>'
    return _section("Batches", note + search + batches)


def _batch(batch: BatchView, inspection: Inspection) -> str:
    samples = "".join(
        f"<article><p>{escape(sample_line(sample, inspection.packed))}</p><pre>{_marked(sample)}</pre></article>"
        for sample in batch.samples
    )
    return f'<div class="batch"><h3>{escape(batch_line(batch, inspection.loader.ranks))}</h3>{samples}</div>'


def _marked(sample: SampleView) -> str:
    stretches: Sequence[str] = [
        f"<mark>{escape(stretch.text)}</mark>" if stretch.learned else escape(stretch.text)
        for stretch in sample.segments
    ]
    text = "".join(stretches)
    return f"\n{text}" if text.startswith("\n") else text  # HTML swallows one line break after <pre>
