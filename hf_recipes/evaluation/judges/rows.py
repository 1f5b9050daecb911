"""Reading JSONL whose every line is one object; whatever is wrong is named with file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, file_problem


def read_rows(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a JSONL file with their line numbers, from 1; empty lines are passed over.

    Raises:
        UserError: the file cannot be read, is not UTF-8, holds no row, or a line is not a JSON object.
    """
    try:
        # Not splitlines(), which would also break at U+2028 and others that JSON allows inside strings.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): convert it.") from None
    except OSError as error:
        raise UserError(file_problem(error)) from None
    rows = [(number, _row(f"{path}, line {number}", line)) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UserError(f"{path} holds no rows: write at least one, as a line of JSON.")
    return rows


def _row(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{where} is not valid JSON ({error}): each line must be one row, as JSON; "
            "CSV and other files must be turned into that, as datasets.Dataset.to_json writes it."
        ) from None
    if not isinstance(row, dict):
        raise UserError(f"{where} is not an object: write a row as {{…}}.")
    if "\\ud" in line.lower() and not has_utf8(row):  # no tokenizer takes it
        raise UserError(f"{where} has half a surrogate pair (\\ud800 to \\udfff), which is no character.")
    return row


def has_utf8(row: dict[str, Any]) -> bool:
    """Whether every text in a row is made of whole characters."""
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
