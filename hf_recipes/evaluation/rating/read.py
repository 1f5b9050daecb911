"""Reading back what raters saved: CSV files held against the key of their sheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hf_recipes.core.errors import UserError, file_problem
from hf_recipes.core.files import read_json
from hf_recipes.evaluation.rating.criteria import HIGHEST, LOWEST

_PREFERENCES = ("A", "B", "tie", "")
_DELIMITERS = ",;\t"  # what spreadsheets of different countries save a CSV with


@dataclass(frozen=True)
class Key:
    """What a sheet's key file says: `shown` is, for each item, which side stood as A and which as B."""

    sheet: str
    sides: tuple[str, str]
    criteria: tuple[str, ...]
    shown: dict[int, dict[str, str]]


@dataclass(frozen=True)
class Rating:
    """One rater on one item, with sides in place of A and B. `preference` is a side, ``tie`` or empty."""

    file: Path
    rater: str
    item: int
    preference: str
    scores: dict[tuple[str, str], int]

    @property
    def touched(self) -> bool:
        """Whether the rater said anything about the item."""
        return bool(self.preference or self.scores)


def read_key(path: Path) -> Key:
    """Read ``NAME.key.json``.

    Raises:
        UserError: it is not there or is no key.
    """
    try:
        value = read_json(path)
        shown = {int(item): {side: str(entry[side]) for side in "AB"} for item, entry in value["items"].items()}
        first, second = map(str, value["sides"])
        return Key(str(value["sheet"]), (first, second), tuple(map(str, value["criteria"])), shown)
    except OSError as error:
        raise UserError(file_problem(error)) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is no key of a rating sheet: name the .key.json written beside the sheet.") from None


def read_rating_file(path: Path, key: Key) -> list[Rating]:
    """Read one CSV file as the sheet saves it, also after a spreadsheet saved it again.

    Raises:
        UserError: it cannot be read, is of another sheet, or a row is damaged; the row's number is named.
    """
    ratings: list[Rating] = []
    rows: dict[tuple[str, int], int] = {}
    for number, cells in _rows(path, key):
        rating = _rating(f"{path}, row {number}", path, cells, key)
        earlier = rows.setdefault((rating.rater, rating.item), number)
        if earlier != number:
            raise UserError(f"{path}, row {number} rates item {rating.item} again, after row {earlier}: keep one.")
        ratings.append(rating)
    if not any(rating.touched for rating in ratings):
        raise UserError(f"{path} holds no rating: rate some items and save the sheet again.")
    return ratings


def refuse_same_rater(ratings: Sequence[Rating]) -> None:
    """Make sure that no rater comes twice.

    Raises:
        UserError: two files are of one rater.
    """
    files: dict[str, Path] = {}
    for rating in ratings:
        other = files.setdefault(rating.rater, rating.file)
        if other != rating.file:
            raise UserError(
                f"{other} and {rating.file} are both of the rater '{rating.rater}': leave one out, or give one of them"
                " another name in its column 'rater'."
            )


def _rows(path: Path, key: Key) -> list[tuple[int, dict[str, str]]]:
    """The rows with their numbers as a spreadsheet shows them: the header is row 1."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as such.") from None
    except OSError as error:
        raise UserError(file_problem(error)) from None
    head = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=head.count)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as error:
        raise UserError(f"{path} is damaged ({error}): save the sheet again.") from None
    header = [name.strip() for name in lines[0]] if lines else []
    for name in ("sheet", "rater", "item", "preference", *_columns(key)):
        if name not in header:
            raise UserError(f"{path} has no column '{name}': it is of another sheet, or a column was deleted.")
    rows = [(number, cells) for number, cells in enumerate(lines[1:], start=2) if any(cell.strip() for cell in cells)]
    for number, cells in rows:
        if len(cells) != len(header):
            raise UserError(f"{path}, row {number} has {len(cells)} cells instead of {len(header)}: it is damaged.")
    return [(number, dict(zip(header, map(str.strip, cells), strict=True))) for number, cells in rows]


def _rating(where: str, path: Path, cells: Mapping[str, str], key: Key) -> Rating:
    if cells["sheet"] != key.sheet:
        raise UserError(f"{where} is of the sheet {cells['sheet'] or 'without a name'}, not of {key.sheet}: wrong key?")
    if not cells["rater"]:
        raise UserError(f"{where} names no rater: write a name in its column 'rater'.")
    item = _whole(cells["item"])
    if item is None or item not in key.shown:
        raise UserError(f"{where} rates item '{cells['item']}', which the sheet does not have.")
    if cells["preference"] not in _PREFERENCES:
        raise UserError(f"{where} has the preference '{cells['preference']}', which is not A, B or tie.")
    shown = key.shown[item]
    scores = {
        (name, shown[letter]): score
        for name in key.criteria
        for letter in "AB"
        if (score := _score(where, f"{letter}: {name}", cells)) is not None
    }
    preference = shown.get(cells["preference"], cells["preference"])
    return Rating(path, cells["rater"], item, preference, scores)


def _columns(key: Key) -> list[str]:
    return [f"{letter}: {name}" for name in key.criteria for letter in "AB"]


def _score(where: str, column: str, cells: Mapping[str, str]) -> int | None:
    if not cells[column]:
        return None
    score = _whole(cells[column])
    if score is None or not LOWEST <= score <= HIGHEST:
        raise UserError(f"{where}: '{column}' is '{cells[column]}', not a whole number from {LOWEST} to {HIGHEST}.")
    return score


def _whole(text: str) -> int | None:
    """``3``, and ``3.0`` as some spreadsheets write it."""
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() else None
