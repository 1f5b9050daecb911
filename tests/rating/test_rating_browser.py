"""The sheet in a real Chromium: rated by the keyboard alone, kept, saved, and read back with its key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from browser import Watched, launched
from rating_files import CRITERIA, items
from test_rating_sheet import EVIL

from hf_recipes.evaluation.rating.agreement import read_ratings
from hf_recipes.evaluation.rating.sheet import write_rating_sheet

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser():
    with launched() as opened:
        yield opened


@pytest.fixture
def opened(browser, tmp_path):
    """A sheet of three items, open; what it said to the console and asked of the network."""
    hostile = [replace(item, prompt=f"{EVIL} {item.number}", reference=EVIL) for item in items(3)]
    result = write_rating_sheet(tmp_path / "sheet.html", hostile, CRITERIA, samples=3, seed=2)
    watched = Watched(browser)
    watched.page.goto(result.page.resolve().as_uri())
    yield watched, result
    watched.close()


def rate_all(page, key):
    """The tuned model gets 5 and the preference, the base 2, by keys alone."""
    for item in json.loads(key.read_text())["items"].values():
        for _ in CRITERIA:
            for side in "AB":
                page.keyboard.press("5" if item[side] == "tuned" else "2")
        page.keyboard.press("a" if item["A"] == "tuned" else "b")
        page.keyboard.press("Enter")


def saved(page, file):
    with page.expect_download() as download:
        page.keyboard.press("s")
    download.value.save_as(file)
    return download.value.suggested_filename


def test_rated_by_keys_saved_and_read_back(opened, tmp_path):
    watched, result = opened
    page = watched.page
    page.keyboard.press("s")  # without a name nothing is saved, and the name is asked for
    page.keyboard.type("Zoë 李")
    page.locator("h1").click()
    page.evaluate("document.activeElement.blur()")
    rate_all(page, result.key)
    assert page.locator("#done").text_content() == "3 of 3 rated"
    assert saved(page, tmp_path / "zoe.csv") == "ratings-Zoë_李.csv"
    summary = read_ratings([tmp_path / "zoe.csv"], result.key)
    assert summary.raters == {"Zoë 李": 3}
    assert [each.wins for each in summary.preferences] == [0, 3]
    assert summary.means == {name: {"base": 2.0, "tuned": 5.0} for name in CRITERIA}
    assert watched.said == []
    assert [url for url in watched.asked if not url.startswith(("file:", "blob:"))] == []


@pytest.mark.trials
def test_progress_is_kept_over_a_reload_and_can_be_corrected(opened, tmp_path):
    watched, result = opened
    page = watched.page
    page.locator("#rater").fill("ann")
    page.locator("h1").click()
    rate_all(page, result.key)
    page.keyboard.press("ArrowLeft")
    page.reload()
    assert page.locator("#done").text_content() == "3 of 3 rated"
    assert page.locator("#rater").input_value() == "ann"
    assert page.locator("h1").text_content() == "Item 2 of 3"
    page.keyboard.press("t")
    page.locator("textarea").fill('=1+1 "quoted",\nüber zwei Zeilen')
    page.locator("h1").click()
    saved(page, tmp_path / "ann.csv")
    summary = read_ratings([tmp_path / "ann.csv"], result.key)
    assert [(each.wins, each.ties) for each in summary.preferences] == [(0, 1), (2, 1)]
    assert "'=1+1" in (tmp_path / "ann.csv").read_text(encoding="utf-8-sig")


@pytest.mark.trials
def test_hostile_text_is_shown_and_does_nothing(opened):
    watched, _ = opened
    page = watched.page
    assert page.locator(".foreign").first.text_content().startswith(EVIL.split(" \ud800")[0])
    page.keyboard.press("r")
    assert page.locator(".said .foreign").text_content().startswith("</script>")
    assert page.locator("img, .foreign script").count() == 0
    assert watched.said == []


@pytest.mark.trials
def test_arrows_choose_what_a_digit_rates_and_clicks_do_too(opened):
    watched, _ = opened
    page = watched.page
    page.keyboard.press("ArrowDown")
    page.keyboard.press("4")
    assert page.locator('button[aria-label="B: fluency 4"]').get_attribute("aria-pressed") == "true"
    page.locator('button[aria-label="A: format 1"]').click()
    assert page.locator('button[aria-label="A: format 1"]').get_attribute("aria-pressed") == "true"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert page.locator('button[aria-label="A: format 1"]').get_attribute("aria-pressed") == "true"
    assert page.locator(".field.here").count() == 1
    page.keyboard.press("9")  # no score
    assert page.locator('button[aria-pressed="true"]').count() == 2


@pytest.mark.trials
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_cut_off(browser, tmp_path, scheme):
    result = write_rating_sheet(tmp_path / "sheet.html", items(2), samples=2, seed=0)
    watched = Watched(browser, viewport={"width": 375, "height": 700}, color_scheme=scheme)
    watched.page.goto(result.page.resolve().as_uri())
    assert watched.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    watched.page.screenshot(path=str(tmp_path / "phone.png"))
    watched.close()
