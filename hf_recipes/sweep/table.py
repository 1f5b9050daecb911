"""The table of a sweep: a row a trial, sorted by what is sought. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hf_recipes.core.tables import render_table
from hf_recipes.sweep.axes import short, show
from hf_recipes.sweep.outcome import Outcome
from hf_recipes.sweep.points import Point

NOTHING = "–"
_ORDER = ("ok", "pruned", "stopped", "waiting", "failed", "left out")


@dataclass(frozen=True)
class Row:
    """One trial: its name, its point, what came of it, whether it is the best."""

    name: str
    point: Point
    outcome: Outcome
    best: bool = False


# Head, and how it is written; a column without any value is left out.
_COLUMNS: tuple[tuple[str, Callable[[Outcome], float | int | None], str], ...] = (
    ("steps", lambda outcome: outcome.steps, "{:,}"),
    ("eval loss, best", lambda outcome: outcome.best_loss, "{:.4g}"),
    ("last", lambda outcome: outcome.last_loss, "{:.4g}"),
    ("forgetting", lambda outcome: outcome.forgetting, "{:+.3f}"),
    ("trained", lambda outcome: outcome.trained, "{:,}"),
    ("MiB", lambda outcome: outcome.memory_mib, "{:,.0f}"),
    ("tokens/s", lambda outcome: outcome.tokens_per_second, "{:,.0f}"),
    ("seconds", lambda outcome: outcome.seconds, "{:,.0f}"),
    ("ms/token", lambda outcome: outcome.ms_per_token, "{:.1f}"),
)


def sort_rows(rows: Sequence[Row], *, less: bool) -> list[Row]:
    """Those that ended well first, the best of them on top; then pruned, unfinished and failed ones."""

    def order(row: Row) -> tuple[int, float]:
        value = row.outcome.target
        worst = float("inf")
        return _ORDER.index(row.outcome.state), worst if value is None else value if less else -value

    return sorted(rows, key=order)


def differing_keys(rows: Sequence[Row]) -> list[str]:
    """The keys of the points, in order of first sight."""
    return list(dict.fromkeys(key for row in rows for key in row.point))


def cells(rows: Sequence[Row], metric: str) -> tuple[list[str], list[list[str]]]:
    """Heads and rows as text. The metric has a column of its own where none of the others shows it."""
    keys = differing_keys(rows)
    columns = [
        (head, value, form) for head, value, form in _COLUMNS if any(value(row.outcome) is not None for row in rows)
    ]
    if metric != "eval_loss":
        columns.insert(0, (metric, lambda outcome: outcome.target, "{:.4g}"))
    heads = ["", *map(short, keys), *(head for head, _, _ in columns), "end"]
    lines = []
    for row in rows:
        figures = [_figure(value(row.outcome), form) for _, value, form in columns]
        lines.append(
            [
                "*" if row.best else "",
                *(show(row.point[key]) if key in row.point else NOTHING for key in keys),
                *figures,
                row.outcome.state,
            ]
        )
    return heads, lines


def _figure(value: float | int | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)


def ends(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """(trial, sentence) of those that did not end well."""
    return [(row.name, f"{row.outcome.state}: {row.outcome.sentence}") for row in rows if row.outcome.sentence]


def terminal(rows: Sequence[Row], metric: str, sentences: Sequence[str]) -> str:
    """For a terminal: the table, how trials ended otherwise than well, and what it says."""
    told = [f"{name}: {sentence}" for name, sentence in ends(rows)]
    return "\n".join([render_table(*cells(rows, metric)), *([""] if told else []), *told, "", *sentences])


def markdown(title: str, rows: Sequence[Row], metric: str, sentences: Sequence[str]) -> str:
    """The same as Markdown."""
    heads, lines = cells(rows, metric)
    table = [heads, ["---"] * len(heads), *lines]
    body = "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in table)
    told = "".join(f"- {name}: {sentence}\n" for name, sentence in ends(rows))
    said = "".join(f"- {sentence}\n" for sentence in sentences)
    picture = "![sweep](sweep.png)\n"
    return f"# {title}\n\n{said}\n{body}\n\n{told}{'' if not told else chr(10)}{picture}"
