"""The rating sheet of a run, made of its kept answers, and what people wrote on it, read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.core.files import json_safe, read_json, write_json
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.evaluation.kept import Line, read_lines
from hf_recipes.evaluation.prepared import Choices, suite_of
from hf_recipes.evaluation.rating.items import RatingItem
from hf_recipes.evaluation.rating.read import read_key
from hf_recipes.evaluation.rating.sample import by_prompt_length
from hf_recipes.evaluation.rating.sheet import write_rating_sheet
from hf_recipes.evaluation.rating_settings import RatingSettings
from hf_recipes.evaluation.rows import DomainRow
from hf_recipes.evaluation.sides import TUNED

SEED = 0
_STRATA = ("stratum", "category", "source")  # keys of a row that say what it is a sample of


def write_sheet_of_run(run: RunDirectory, page: Path) -> str:
    """Write a page on which people judge the domain answers of the run's result and of the model it was compared with.

    Rows are drawn by their ``stratum``, ``category`` or ``source`` where all have one, else by the length of their
    prompts. Where the key lies is written into the run, so that `read_ratings_of_run` finds it.

    Returns:
        A sentence on what was written.

    Raises:
        UserError: the run was not evaluated, or has no domain rows.
    """
    check_sheet(run, page)
    suite = suite_of(run, run.read(run.run_json), Choices())
    assert suite.domain is not None
    reference = run.read(run.evaluation_json)["reference"]
    settings = suite.rating or RatingSettings()
    items = _items(run, (reference, TUNED), {row.number: row for row in suite.domain_rows})
    written = write_rating_sheet(page, items, settings.criteria, samples=settings.samples, seed=SEED)
    pages = _pages(run)
    write_json(pages, [*_keys(run), str(written.key.resolve())])
    strata = ", ".join(f"{count} {name}" for name, count in written.strata.items())
    return f"Rating sheet: {written.page}, {written.items} rows ({strata}); whose answers they are: {written.key}."


def read_ratings_of_run(run: RunDirectory, files: Sequence[Path], *, as_json: bool = False) -> str:
    """What people wrote, summed up: as text, or as JSON.

    Raises:
        UserError: a file is no rating, or no key of this run belongs to it.
    """
    from hf_recipes.evaluation.rating.agreement import read_ratings, render

    for file in files:
        if not file.is_file():
            raise UserError(f"--ratings: '{file}' is no file: name the CSV that a rater saved, and RUN_DIR before it.")
    beside = [str(key) for folder in {file.parent for file in files} for key in sorted(folder.glob("*.key.json"))]
    keys = [Path(key) for key in dict.fromkeys([*reversed(_keys(run)), *beside]) if Path(key).is_file()]
    if not keys:
        raise UserError("--ratings: the sheet's .key.json is neither where it was written nor beside the ratings.")
    summary = read_ratings(list(files), next((key for key in keys if _belong_to(files, key)), keys[0]))
    return json.dumps(json_safe(asdict(summary)), ensure_ascii=False, indent=2) if as_json else render(summary)


def _belong_to(files: Sequence[Path], key: Path) -> bool:
    """Whether a file names the sheet of this key; what is wrong with it besides, is told when it is read."""
    try:
        sheet = read_key(key).sheet
        return any(sheet.encode() in file.read_bytes() for file in files)
    except (UserError, OSError):
        return False


def check_sheet(run: RunDirectory, page: Path) -> None:
    """Tell before the models answer that no sheet can be written.

    Raises:
        UserError: the recipe has no domain rows, or the page's path is a directory.
    """
    if suite_of(run, run.read(run.run_json), Choices()).domain is None:
        raise UserError("--rating-sheet: people judge answers to evaluation.domain, which this recipe does not have.")
    if page.is_dir():
        raise UserError(f"--rating-sheet: '{page}' is a directory: name the page to write, such as sheet.html.")


def _items(run: RunDirectory, sides: tuple[str, str], rows: dict[int, DomainRow]) -> list[RatingItem]:
    answers = {side: _domain_lines(run, side) for side in sides}
    items = [
        RatingItem(
            number=number,
            prompt=_text(line["prompt"]),
            reference=line["reference"],
            answers={side: answers[side][number]["answer"] for side in sides},
            stratum=_stratum(rows.get(number)),
        )
        for number, line in answers[TUNED].items()
        if all(number in some for some in answers.values())
    ]
    return items if all(item.stratum for item in items) else by_prompt_length(items)


def _domain_lines(run: RunDirectory, side: str) -> dict[int, Line]:
    lines = read_lines(run.path / "evaluation" / f"{side}.jsonl")
    return {line["line"]: line for line in lines if line.get("part") == "domain"}


def _stratum(row: DomainRow | None) -> str:
    given = {} if row is None else row.given
    return next((str(given[key]) for key in _STRATA if isinstance(given.get(key), str) and given[key]), "")


def _text(messages: Sequence[dict[str, Any]]) -> str:
    """A lone question as it is; of a conversation, who says what."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n\n".join(f"{turn['role']}: {turn['content']}" for turn in messages)


def _pages(run: RunDirectory) -> Path:
    return run.path / "evaluation" / "rating_keys.json"


def _keys(run: RunDirectory) -> list[str]:
    return list(read_json(_pages(run))) if _pages(run).is_file() else []
