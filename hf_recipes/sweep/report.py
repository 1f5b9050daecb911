"""What a sweep leaves beside its trials: table, page, picture, the winner's recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import write_text
from hf_recipes.core.log import logger
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.sweep.axes import DECIDES
from hf_recipes.sweep.best import write_best
from hf_recipes.sweep.book import Book, Entry
from hf_recipes.sweep.outcome import Outcome
from hf_recipes.sweep.page import write_page
from hf_recipes.sweep.picture import draw_sweep
from hf_recipes.sweep.points import Point
from hf_recipes.sweep.ranking import Group, Result, best_result, edge_sentences, group_by_seed, spread_sentence
from hf_recipes.sweep.table import Row, markdown, sort_rows
from hf_recipes.sweep.trials import told_point


def rows_of(book: Book, outcome: Callable[[Entry], Outcome], *, less: bool) -> list[Row]:
    """The rows of the table, the best on top and marked."""
    keys = list(dict.fromkeys(key for entry in book.entries.values() for key in entry.point))
    rows = [Row(entry.name, _whole_point(entry.point, keys, book), outcome(entry)) for entry in book.entries.values()]
    groups = groups_of(rows, less=less)
    best = best_result(groups, less=less).name if groups else None
    return sort_rows([replace(row, best=row.name == best) for row in rows], less=less)


def _whole_point(point: Point, keys: Sequence[str], book: Book) -> Point:
    """A point with the recipe's own value where only another call swept over a key."""
    own = {key: book.base[key] for key in keys if key in book.base and key not in DECIDES}
    return {key: point.get(key, own.get(key)) for key in keys if key in point or key in own}


def groups_of(rows: Sequence[Row], *, less: bool) -> list[Group]:
    """The trials that ended well, those apart that differ in more than their seed."""
    results = [
        Result(row.name, row.point, row.outcome.target)
        for row in rows
        if row.outcome.state == "ok" and row.outcome.target is not None
    ]
    return group_by_seed(results, less=less)


def sentences(directory: Path, rows: Sequence[Row], metric: str, *, less: bool) -> list[str]:
    """What the table says."""
    groups = groups_of(rows, less=less)
    if not groups:
        return ["No trial has ended well yet."]
    winner = best_result(groups, less=less)
    told = told_point(groups[0].point) or "the recipe as it is"
    seeds = f" over {len(groups[0].results)} seeds" if len(groups[0].results) > 1 else ""
    said = [f"Best: {told}, {metric} {groups[0]}{seeds} ({winner.name}); its recipe: {directory / 'best.yaml'}."]
    said += edge_sentences(groups)
    if spread := spread_sentence(groups, metric):
        said.append(spread)
    counts = {state: sum(row.outcome.state == state for row in rows) for state in ("pruned", "failed", "stopped")}
    if told_counts := ", ".join(f"{count} {state}" for state, count in counts.items() if count):
        said.append(f"Of {len(rows)} trials: {told_counts}.")
    return said


def write_reports(
    directory: Path, book: Book, rows: Sequence[Row], *, less: bool, recipe_of: Callable[[str], Recipe]
) -> None:
    """Write sweep.md, sweep.html, sweep.png and best.yaml, and put the best and what is said into the book."""
    metric, title = book.metric, f"Sweep of {book.recipe}"
    said, groups, png = (
        sentences(directory, rows, metric, less=less),
        groups_of(rows, less=less),
        directory / "sweep.png",
    )
    draw_sweep(groups, metric, png, less=less)
    write_text(directory / "sweep.md", markdown(title, rows, metric, said))
    write_page(directory / "sweep.html", title, rows, metric, said, png)
    book.facts = {"sentences": said}
    if groups:
        winner = best_result(groups, less=less)
        book.facts = {"best": winner.name, "best_value": winner.value, "sentences": said}
        try:
            recipe = recipe_of(winner.name)
        except UserError as error:
            logger.warning("best.yaml is not written: %s", error)
            return
        write_best(directory / "best.yaml", recipe, f"{winner.name} of {directory}: {metric} {winner.value:.4g}")
