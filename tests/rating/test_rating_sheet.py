from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rating_files import CRITERIA, items

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.rating.criteria import DEFAULT_CRITERIA, criteria_from
from hf_recipes.evaluation.rating.sheet import write_rating_sheet

EVIL = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)> \ud800 مرحبا 你好"


def data_of(page: str) -> dict:
    """What the page's script reads."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_key_tells_whose_answers_are_and_the_page_does_not(tmp_path):
    result = write_rating_sheet(tmp_path / "sheet.html", items(40), CRITERIA, samples=20, seed=3)
    page, key = result.page.read_text(), json.loads(result.key.read_text())
    assert (result.items, result.key.name) == (20, "sheet.key.json")
    data = data_of(page)
    assert data["sheet"] == key["sheet"]
    for item in data["items"]:
        words = {"base": "poor", "tuned": "good"}
        shown = key["items"][str(item["item"])]
        assert {side: item[side].split()[0] for side in "AB"} == {side: words[shown[side]] for side in "AB"}
    assert not re.search("tuned|base|stratum", json.dumps(data))  # the answers say poor and good
    first = [entry["A"] for entry in key["items"].values()]
    assert 4 <= first.count("base") <= 16  # sides are drawn: 20 fair draws leave this range once in 400


def test_a_seed_gives_the_same_sheet_and_another_another(tmp_path):
    def sheet(name, seed, some):
        result = write_rating_sheet(tmp_path / name, some, CRITERIA, samples=10, seed=seed)
        return json.loads(result.key.read_text())

    assert sheet("a.html", 1, items(30)) == sheet("b.html", 1, items(30))
    assert sheet("a.html", 1, items(30))["sheet"] != sheet("b.html", 2, items(30))["sheet"]
    changed = [replace(item, prompt=item.prompt + "!") for item in items(30)]
    assert sheet("a.html", 1, items(30))["sheet"] != sheet("b.html", 1, changed)["sheet"]


@settings(max_examples=50, deadline=None)
@given(st.text(), st.text())
def test_no_answer_ends_the_script_it_stands_in(tmp_path_factory, prompt, answer):
    item = items(1)[0]
    hostile = replace(item, prompt=EVIL + prompt, answers={"base": answer + EVIL, "tuned": answer})
    page = tmp_path_factory.mktemp("sheet") / "sheet.html"
    write_rating_sheet(page, [hostile], CRITERIA, samples=1, seed=0)
    text = page.read_text(encoding="utf-8")
    assert text.count("<script") == text.count("</script>") == 2
    (entry,) = data_of(text)["items"]
    assert entry["prompt"] == EVIL + prompt
    assert {entry["A"], entry["B"]} == set(hostile.answers.values())


def test_the_page_asks_for_nothing_outside(tmp_path):
    page = write_rating_sheet(tmp_path / "sheet.html", items(3), samples=3, seed=0).page.read_text()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|<link|src=", page)


@pytest.mark.parametrize(
    ("some", "sentence"),
    [
        ([], "nothing to rate"),
        ([replace(items(1)[0], answers={"base": ""})], "compares two models; there are 1"),
        ([replace(items(1)[0], answers=dict.fromkeys("abc", ""))], "there are 3"),
        (items(1) + items(1), "same number"),
        ([*items(1), replace(items(2)[1], answers={"base": "", "other": ""})], "Row 2 has answers of base, other"),
    ],
)
def test_items_that_cannot_be_compared(tmp_path, some, sentence):
    with pytest.raises(UserError, match=sentence):
        write_rating_sheet(tmp_path / "sheet.html", some, samples=3, seed=0)
    assert list(tmp_path.iterdir()) == []


def test_criteria_from_a_recipe():
    assert criteria_from(None) == DEFAULT_CRITERIA
    assert criteria_from(["fluency", "tone"]) == {"fluency": DEFAULT_CRITERIA["fluency"], "tone": ""}
    assert criteria_from({"tone": "Is it kind?"}) == {"tone": "Is it kind?"}
    for wrong in ([], "tone", 3, [3], [""], ["x" * 61], {"tone": 3}):
        with pytest.raises(UserError, match=r"evaluation\.rating\.criteria"):
            criteria_from(wrong)
