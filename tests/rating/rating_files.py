"""Sheets and raters' files for the tests of rating."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from hf_recipes.evaluation.rating.items import RatingItem

CRITERIA = ["fluency", "format"]


def items(count: int, strata: int = 1) -> list[RatingItem]:
    """Numbered 1 to `count`; a tuned model that answers better than its base."""
    return [
        RatingItem(
            number, f"prompt {number}", "", {"base": f"poor {number}", "tuned": f"good {number}"}, f"s{number % strata}"
        )
        for number in range(1, count + 1)
    ]


def csv_text(key_file: Path, rater: str, choose, delimiter: str = ",") -> str:
    """A file as the sheet saves it. `choose` takes an item and a side and returns (score, preferred or None)."""
    key = json.loads(key_file.read_text())
    columns = [
        "sheet",
        "rater",
        "item",
        *(f"{side}: {name}" for name in key["criteria"] for side in "AB"),
        "preference",
        "note",
    ]
    out = io.StringIO()
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerow(columns)
    for item, shown in key["items"].items():
        scores = [choose(int(item), shown[side])[0] for _ in key["criteria"] for side in "AB"]
        preferred = [side for side in "AB" if choose(int(item), shown[side])[1]]
        preference = {1: preferred[0] if preferred else "", 2: "tie", 0: ""}[len(preferred)]
        writer.writerow([key["sheet"], rater, item, *scores, preference, "a note,\nof two lines"])
    return out.getvalue()
