"""The rating sheet: one HTML file on which a person compares answers blind, and beside it the key to whose they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.escape import script_json
from hf_recipes.core.files import short_digest, write_json, write_text
from hf_recipes.core.html import document
from hf_recipes.evaluation.rating.criteria import HIGHEST, LOWEST, criteria_from
from hf_recipes.evaluation.rating.items import RatingItem
from hf_recipes.evaluation.rating.sample import stratified

KEY_SCHEMA = 1
# The page itself may ask the network for nothing, and runs no script but its own two.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class SheetResult:
    """What was written: the page, its key, and how many items stand on it (of each stratum)."""

    page: Path
    key: Path
    items: int
    strata: dict[str, int]


def write_rating_sheet(
    path: str | Path, items: Sequence[RatingItem], criteria: Any = None, *, samples: int, seed: int
) -> SheetResult:
    """Write a page to rate answers on, and ``NAME.key.json`` beside it, which says whose each answer is.

    On the page the two answers of an item are A and B, in an order drawn for each item; what it holds does not tell
    which is whose. Items are drawn by strata and shuffled. A page is known by a fingerprint of all it holds, which its
    CSV files carry, so that ratings are read with the right key.

    Args:
        path: of the page.
        items: with the answers of the same two sides each.
        criteria: names, or names with questions; the four defaults where None (see `criteria_from`).
        samples: items on the page, at most.
        seed: of drawing, shuffling and sides.

    Raises:
        UserError: there are no items, two have one number, or they do not have the same two sides.
        OSError: a file cannot be written.
    """
    page, sides, criteria = Path(path), _two_sides(items), criteria_from(criteria)
    chosen = stratified(items, samples, seed)
    generator = random.Random(f"order {seed}")
    generator.shuffle(chosen)
    shown = [generator.sample(sides, 2) for _ in chosen]
    entries = [_entry(item, pair) for item, pair in zip(chosen, shown, strict=True)]
    names = [{"name": name, "question": question} for name, question in criteria.items()]
    sheet = {"items": entries, "criteria": names, "lowest": LOWEST, "highest": HIGHEST}
    fingerprint = short_digest(script_json(sheet))
    key = page.with_suffix(".key.json")
    strata: dict[str, int] = {}
    for item in chosen:
        strata[item.stratum] = strata.get(item.stratum, 0) + 1
    write_text(page, _page({**sheet, "sheet": fingerprint}))
    write_json(
        key,
        {
            "schema": KEY_SCHEMA,
            "sheet": fingerprint,
            "sides": sides,
            "criteria": list(criteria),
            "items": {
                str(item.number): {"A": pair[0], "B": pair[1], "stratum": item.stratum}
                for item, pair in zip(chosen, shown, strict=True)
            },
        },
    )
    return SheetResult(page=page, key=key, items=len(chosen), strata=strata)


def _two_sides(items: Sequence[RatingItem]) -> list[str]:
    if not items:
        raise UserError("There is nothing to rate: the evaluation has no answers.")
    sides = sorted(items[0].answers)
    if len(sides) != 2:
        raise UserError(f"A rating sheet compares two models; there are {len(sides)}: choose two with --against.")
    numbers = [item.number for item in items]
    if len(set(numbers)) < len(numbers):
        raise UserError("Two items of the rating sheet have the same number: give each row one of its own.")
    for item in items:
        if sorted(item.answers) != sides:
            raise UserError(f"Row {item.number} has answers of {', '.join(sorted(item.answers))}, not of {sides}.")
    return sides


def _entry(item: RatingItem, pair: Sequence[str]) -> dict[str, Any]:
    return {
        "item": item.number,
        "prompt": item.prompt,
        "reference": item.reference,
        "A": item.answers[pair[0]],
        "B": item.answers[pair[1]],
    }


def _page(sheet: dict[str, Any]) -> str:
    style, script = ((_HERE / name).read_text(encoding="utf-8") for name in ("sheet.css", "sheet.js"))
    body = (
        f'<main id="sheet"></main><script type="application/json" id="data">{script_json(sheet)}</script>'
        f"<script>{script}</script>"
    )
    return document("Rating sheet", body, policy=_POLICY, styles=[style])
