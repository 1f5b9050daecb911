"""An `Inspection` for a screen: tables, bars, batches with the learned parts marked; the verdicts last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hf_recipes.core.printable import printable
from hf_recipes.core.tables import render_table
from hf_recipes.data.inspection import account
from hf_recipes.data.inspection.account import Table
from hf_recipes.data.inspection.batches import BatchView, SampleView
from hf_recipes.data.inspection.facts import Inspection, TokenShare
from hf_recipes.data.inspection.histogram import Histogram
from hf_recipes.data.inspection.segments import as_text

BAR_WIDTH = 40
BOLD, RED, YELLOW, RESET = "\033[1m", "\033[31m", "\033[33m", "\033[0m"
_SEVERITY_COLORS = {"stop": RED, "warn": YELLOW, "note": ""}


def render_terminal(inspection: Inspection, *, color: bool = False, samples: bool = True) -> str:
    """The whole text. `color` marks what is learned in green, otherwise « and » do; `samples` shows the batches."""
    parts = [*_sections(inspection, color), *(_batches(inspection, color) if samples else ())]
    return "\n".join([*parts, _heading("Verdict", color), *_verdicts(inspection, color)]).lstrip("\n")


def _sections(inspection: Inspection, color: bool) -> Iterator[str]:
    report = inspection.report
    tables = [
        ("Sources", account.source_table(report)),
        ("Dropped and changed", account.event_table(report)),
        ("Shares of the training set", account.share_table(report)),
        ("Likeness", account.likeness_table(report)),
        ("Noticed", account.note_table(report)),
    ]
    for title, table in tables:
        if table.rows:
            yield f"{_heading(title, color)}\n{_table(table)}"
    yield f"{_heading('Lengths', color)}\n{_lengths(inspection)}"
    yield f"{_heading('What answers begin and end with', color)}\n{_edges(inspection)}"
    yield f"{_heading('Template and tokens', color)}\n" + "\n".join(template_lines(inspection))


def _heading(title: str, color: bool) -> str:
    return f"\n{BOLD}{title}{RESET}" if color else f"\n== {title} =="


def _table(table: Table) -> str:
    return render_table(table.headers, [[printable(str(cell)) for cell in row] for row in table.rows])


def _lengths(inspection: Inspection) -> str:
    tokens = inspection.tokens
    scanned = "" if tokens.rows == tokens.of_rows else f" (of {tokens.rows} evenly spaced rows out of {tokens.of_rows})"
    return "\n".join(
        [
            f"tokens a sample{scanned}: {_percentiles(tokens.lengths)}",
            *bars(tokens.lengths, inspection.max_length),
            f"learned tokens a sample{scanned}: {_percentiles(tokens.learned)}",
            *bars(tokens.learned),
        ]
    )


def _percentiles(lengths: Histogram) -> str:
    return ", ".join(f"{name} {value}" for name, value in lengths.percentiles.items())


def bars(lengths: Histogram, max_length: int | None = None) -> list[str]:
    """One line a bin; the bin that holds `max_length` is marked, and told where it lies beyond all."""
    highest, width = max(lengths.counts), len(str(lengths.edges[-1]))
    lines = []
    for count, low, high in zip(lengths.counts, lengths.edges[:-1], lengths.edges[1:], strict=True):
        bar = "█" * -(-count * BAR_WIDTH // highest) if highest else ""
        mark = f"  ← max_length {max_length}" if max_length is not None and low <= max_length < high else ""
        lines.append(f"  {low:>{width}}–{high - 1:<{width}} {bar} {count}{mark}")
    if max_length is not None and max_length >= lengths.edges[-1]:
        lines.append(f"  {max_length:>{width}} max_length")
    return lines


def _edges(inspection: Inspection) -> str:
    tokens = inspection.tokens
    if not tokens.answers:
        return "no conversations"
    rows = []
    blank = ["", "", ""]
    for index in range(max(len(tokens.first_tokens), len(tokens.last_tokens))):
        sides = [
            _edge(side[index]) if index < len(side) else blank for side in (tokens.first_tokens, tokens.last_tokens)
        ]
        rows.append([*sides[0], *sides[1]])
    table = render_table(["first token", "answers", "share", "last token", "answers", "share"], rows)
    return f"{table}\n{tokens.answers} answers in {tokens.conversations} conversations"


def _edge(token: TokenShare) -> list[object]:
    part = f" (part of a letter, token {token.token_id})" if "\ufffd" in token.text else ""
    return [printable(repr(token.text)) + part, token.count, f"{token.share:.1%}"]


def template_lines(inspection: Inspection) -> list[str]:
    """What was checked about the chat template and the tokens, one sentence each."""
    lines = []
    end = inspection.report.get("end_of_turn")
    if end:
        lines.append(f"assistant turns end with {end['text']} (token {end['token_id']})")
    for source, (samples, learn_it) in inspection.tokens.ends.items():
        lines.append(f"{source}: {learn_it} of {samples} conversations learn that end ({learn_it / samples:.1%})")
    for trip in inspection.round_trips:
        compared = f"{trip.answers} answers compared, " if trip.answers else ""
        lines.append(
            f"{trip.source}: {trip.rows - trip.failed - trip.unknown} of {trip.rows} rows come back from tokens as "
            f"they went in ({compared}{trip.altered} altered by template or tokenizer)"
        )
    doubled = len(inspection.tokens.doubled_bos)
    lines.append(f"{doubled} of {inspection.tokens.rows} samples begin with two BOS tokens")
    return lines


def _batches(inspection: Inspection, color: bool) -> Iterator[str]:
    if not inspection.batches:
        return
    yield _heading("Batches", color)
    yield batch_note(inspection)
    for batch in inspection.batches:
        yield f"\n── {batch_line(batch, inspection.loader.ranks)}"
        for sample in batch.samples:
            yield f"─ {printable(sample_line(sample, inspection.packed))}"
            yield as_text(sample.segments, color)


def batch_note(inspection: Inspection) -> str:
    """How the batches were drawn, and the padding of an epoch."""
    loader = inspection.loader
    rows = "packed rows" if inspection.packed else "samples"
    return (
        f"the first of the run (seed {loader.seed}, {loader.sampling.replace('_', ' ')} order), {loader.batch_size} "
        f"{rows} each; padding over an epoch: {inspection.padding_share:.1%}"
    )


def sample_line(sample: SampleView, packed: bool) -> str:
    """A sample in numbers."""
    row = f", row {sample.row}" if packed else ""
    return (
        f"{sample.row_id} ({sample.source}){row}: {sample.tokens} tokens, {sample.learned} learned, "
        f"{sample.padding} padding"
    )


def batch_line(batch: BatchView, ranks: int = 1) -> str:
    """A batch in numbers."""
    rank = f", rank {batch.rank}" if ranks > 1 else ""
    return (
        f"batch {batch.number} (step {batch.step}{rank}): {batch.rows} × {batch.length} positions, "
        f"{batch.tokens} tokens, {batch.learned} learned, {batch.padding_share:.1%} padding"
    )


def _verdicts(inspection: Inspection, color: bool) -> Sequence[str]:
    if not inspection.verdicts:
        return ["nothing that should stop training or is likely a mistake"]
    lines = []
    for verdict in inspection.verdicts:
        word = verdict.severity.upper() if verdict.severity == "stop" else verdict.severity
        shade = _SEVERITY_COLORS[verdict.severity] if color else ""
        lines.append(f"{shade}{word}{RESET if shade else ''}: {printable(verdict.sentence)}")
    return lines
