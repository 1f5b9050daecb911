from __future__ import annotations

import math

import pytest
from rating_files import CRITERIA, csv_text, items

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.rating.agreement import read_ratings, render
from hf_recipes.evaluation.rating.sheet import write_rating_sheet


@pytest.fixture
def key(tmp_path):
    return write_rating_sheet(tmp_path / "sheet.html", items(10), CRITERIA, samples=10, seed=1).key


def saved(tmp_path, name, text, encoding="utf-8-sig"):
    file = tmp_path / f"{name}.csv"
    file.write_text(text, encoding=encoding)
    return file


def likes_tuned(item, side):
    """Prefers the tuned model but for items 1 (a tie) and 2 (the base)."""
    return (5, item != 2) if side == "tuned" else (2, item in (1, 2))


def test_sides_are_put_back_and_counted(tmp_path, key):
    summary = read_ratings([saved(tmp_path, "ann", csv_text(key, "ann", likes_tuned))], key)
    base, tuned = summary.preferences
    assert (summary.sides, summary.raters, summary.agreements) == (("base", "tuned"), {"ann": 10}, [])
    assert (tuned.side, tuned.wins, tuned.ties, tuned.count, tuned.share) == ("tuned", 8, 1, 10, pytest.approx(0.85))
    assert (base.wins, base.share) == (1, pytest.approx(0.15))
    assert tuned.low < 0.85 < tuned.high
    assert summary.means == {name: {"base": 2.0, "tuned": 5.0} for name in CRITERIA}
    text = render(summary)
    assert "Rated by ann (10 of 10)." in text
    assert "85 %" in text


def test_two_raters_and_their_agreement(tmp_path, key):
    def other(item, side):
        """Agrees on all preferences but that of item 3, and scores one lower."""
        score, preferred = likes_tuned(item, side)
        return score - 1, not preferred if item == 3 else preferred

    files = [saved(tmp_path, name, csv_text(key, name, by)) for name, by in (("ann", likes_tuned), ("bob", other))]
    summary = read_ratings(files, key)
    preference, fluency, _ = summary.agreements
    assert (preference.question, preference.items, preference.percent) == ("preference", 10, pytest.approx(0.9))
    # ann: 8 tuned, 1 base, 1 tie; bob: 7, 2, 1. p_e = (8·7 + 1·2 + 1·1)/100 = 0.59; κ = (0.9 − 0.59)/0.41
    assert preference.kappa == pytest.approx(0.31 / 0.41)
    assert (fluency.items, fluency.percent) == (20, 0)
    assert "Krippendorff's alpha" in render(summary)


def test_what_was_left_open_is_left_out(tmp_path, key):
    def half(item, side):
        return (3, side == "base") if item <= 5 else ("", False)

    everything = saved(tmp_path, "ann", csv_text(key, "ann", likes_tuned))
    summary = read_ratings([everything, saved(tmp_path, "bob", csv_text(key, "bob", half))], key)
    assert summary.raters == {"ann": 10, "bob": 5}
    assert summary.preferences[0].count == 15
    assert [each.items for each in summary.agreements] == [5, 10, 10]


def test_no_preferences_and_one_label_have_no_figures(tmp_path, key):
    same = [saved(tmp_path, name, csv_text(key, name, lambda *_: (3, False))) for name in ("ann", "bob")]
    summary = read_ratings(same, key)
    assert summary.preferences == []
    assert all(math.isnan(each.kappa) and math.isnan(each.alpha) for each in summary.agreements)
    assert "Nobody said which answer is better." in render(summary)
    assert "–" in render(summary)


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_file_that_a_spreadsheet_saved_again(tmp_path, key, delimiter):
    text = csv_text(key, "ann", likes_tuned, delimiter).replace('"5"', '"5.0"').replace("\r\n", "\n")
    again = read_ratings([saved(tmp_path, "ann", text, "utf-8")], key)
    assert again == read_ratings([saved(tmp_path, "ann2", csv_text(key, "ann", likes_tuned))], key)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('"5"', '"6"', r"row 2: '[AB]: fluency' is '6', not a whole number from 1 to 5"),
        ('"5"', '"good"', "is 'good', not a whole number"),
        ('"5"', '"4.5"', "is '4.5', not a whole number"),
        ('"tie"', '"both"', "preference 'both', which is not A, B or tie"),
        ('"ann"', '""', "row 2 names no rater"),
        ('"ann","1"', '"ann","99"', "rates item '99', which the sheet does not have"),
        ('"ann","1"', '"ann","2"', "rates item 2 again, after row"),
        ('"A: format"', '"A: tone"', "has no column 'A: format'"),
        ('"a note,\nof two lines"', '"a note', "is damaged"),
        (',"a note,\nof two lines"', "", "row 2 has 8 cells instead of 9"),
    ],
)
def test_damaged_files_are_told_with_the_row(tmp_path, key, old, new, sentence):
    text = csv_text(key, "ann", likes_tuned)
    assert old in text
    damaged = text.replace(old, new) if old == '"ann"' else text.replace(old, new, 1)
    with pytest.raises(UserError, match=sentence):
        read_ratings([saved(tmp_path, "ann", damaged)], key)


def test_files_that_do_not_belong_together(tmp_path, key):
    other = write_rating_sheet(tmp_path / "other.html", items(9), CRITERIA, samples=9, seed=1).key
    ann = saved(tmp_path, "ann", csv_text(key, "ann", likes_tuned))
    with pytest.raises(UserError, match=r"row 2 is of the sheet .*wrong key"):
        read_ratings([ann], other)
    with pytest.raises(UserError, match="both of the rater 'ann'"):
        read_ratings([ann, saved(tmp_path, "ann2", csv_text(key, "ann", likes_tuned))], key)
    with pytest.raises(UserError, match="holds no rating"):
        read_ratings([saved(tmp_path, "bob", csv_text(key, "bob", lambda *_: ("", False)))], key)
    with pytest.raises(UserError, match="cannot be read"):
        read_ratings([tmp_path / "absent.csv"], key)
    with pytest.raises(UserError, match="UTF-8"):
        read_ratings([saved(tmp_path, "carl", "\x80\xff", "latin-1")], key)
    with pytest.raises(UserError, match="has no column 'sheet'"):
        read_ratings([saved(tmp_path, "dora", "")], key)
    with pytest.raises(UserError, match="is no key of a rating sheet"):
        read_ratings([ann], ann)
    with pytest.raises(UserError, match="cannot be read"):
        read_ratings([ann], tmp_path / "absent.key.json")
