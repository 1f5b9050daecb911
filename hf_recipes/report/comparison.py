"""The evaluation's part of the page: the table of its models, and answers side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_recipes.core.escape import text
from hf_recipes.core.html import note, section, table
from hf_recipes.report.html import answer, answer_card
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.series import as_number

SHOWN_OF_A_KIND = 3
_SURE = "* the 95 % interval of the difference (paired bootstrap over the rows) leaves out 0."
_NO_TABLE = "evaluation.json is not there: `hf-recipes evaluate` compares base and tuned."


def evaluation(record: RunRecord) -> str:
    """The whole section."""
    found = _columns(record.evaluation)
    if found is None:
        return section("Evaluation", note(_NO_TABLE))
    heads, lines = found
    rows = [[text(line[0]), *map(_bar, line[1:])] for line in lines]
    parts = [table(heads, rows, css="compare" if len(heads) == 3 else "")]
    if any(isinstance(cell, str) and cell.endswith("*") for line in lines for cell in line):
        parts.append(note(_SURE))
    parts += [f"<p>Gate: {text(sentence)}</p>" for sentence in _gate(record.evaluation)]
    parts.append(note(_settings(record.evaluation)))
    answers = record.evaluation.get("rows")
    chosen = choose(answers) if isinstance(answers, list) else []
    if chosen:
        parts.append("<h3>Answers side by side</h3>" + "".join(map(_answer, chosen)))
        parts.append(note(f"{len(chosen)} of {len(answers or [])} answers; all are in evaluation/."))
    return section("Evaluation", "".join(parts))


def _columns(document: dict[str, Any]) -> tuple[list[str], list[list[Any]]] | None:
    """Heads and rows: of all models with their differences, else of base and tuned, as older evaluations have them."""
    heads, wide = document.get("columns"), document.get("side_by_side")
    if isinstance(heads, list) and heads and isinstance(wide, list):
        return [str(head) for head in heads], [
            line for line in wide if isinstance(line, list) and len(line) == len(heads)
        ]
    lines = document.get("table")
    if not isinstance(lines, list):
        return None
    return ["", "base", "tuned"], [line for line in lines if isinstance(line, list) and len(line) == 3]


def _gate(document: dict[str, Any]) -> list[Any]:
    outcomes = document.get("gate")
    return [each.get("sentence") for each in outcomes if isinstance(each, dict)] if isinstance(outcomes, list) else []


def missed_conditions(document: dict[str, Any]) -> list[str]:
    """What the gate of an evaluation.json asked for and did not get, a sentence each."""
    outcomes = document.get("gate")
    missed = [each for each in outcomes if isinstance(each, dict)] if isinstance(outcomes, list) else []
    return [str(each.get("sentence", "")) for each in missed if each.get("holds") is False]


def choose(rows: Sequence[Any]) -> list[dict[str, Any]]:
    """A few rows that tell most: what tuning gained, then what tuned gets wrong, else the first ones."""
    usable = [row for row in rows if isinstance(row, dict)]
    gained = [row for row in usable if _side(row, "tuned").get("exact") and not _side(row, "base").get("exact")]
    wrong = [row for row in usable if not _side(row, "tuned").get("exact")]
    return [*gained[:SHOWN_OF_A_KIND], *wrong[:SHOWN_OF_A_KIND]] or usable[:SHOWN_OF_A_KIND]


def _side(row: dict[str, Any], name: str) -> dict[str, Any]:
    side = row.get(name)
    return side if isinstance(side, dict) else {}


def _settings(document: dict[str, Any]) -> str:
    settings = document.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    shown = [
        f"{key.replace('_', ' ')} {settings[key]}" for key in ("decoding", "dtype", "max_new_tokens") if key in settings
    ]
    rows = document.get("rows")
    count = [f"{len(rows)} held-out rows"] if isinstance(rows, list) else []
    return ", ".join([*count, *shown])


def _bar(cell: Any) -> str:
    """A cell of the table; a percentage has a bar under it."""
    shown = text(cell)
    percent = as_number(cell[:-1]) if isinstance(cell, str) and cell.endswith("%") else None
    if percent is None or not 0 <= percent <= 100:
        return shown
    return f'{shown}<span class="bar"><span style="width:{percent:.1f}%"></span></span>'


def _answer(row: dict[str, Any]) -> str:
    cards = [answer_card("reference", row.get("reference"))]
    for name in ("base", "tuned"):
        side = _side(row, name)
        cards.append(answer_card(name, side.get("answer"), _mark(side.get("exact"))))
    return answer(row.get("prompt"), cards)


def _mark(right: Any) -> str:
    if right is None:
        return ""
    return ' <span class="right">✓ right</span>' if right else ' <span class="wrong">✗ wrong</span>'
