from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace

import pytest
from browser import launched
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_page import Page
from plan_views import BARE, BARS, DEVICES, EVIL, GIB, GRID, HOSTILE, LIMIT, NOTHING_FITS, QLORA_7B, UNKNOWN_RUN

from hf_recipes.plan.pictures.axes import memory_axis
from hf_recipes.plan.pictures.page import render_page, write_page

VIEWS = [QLORA_7B, NOTHING_FITS, BARE, HOSTILE, UNKNOWN_RUN]


def renamed(item, word: str):
    """Data with EVIL, wherever it stands, replaced by another word."""
    if is_dataclass(item):
        return replace(item, **{each.name: renamed(getattr(item, each.name), word) for each in fields(item)})
    if isinstance(item, dict):
        return {renamed(key, word): renamed(value, word) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return type(item)(renamed(each, word) for each in item)
    return item.replace(EVIL, word) if isinstance(item, str) else item


@pytest.mark.parametrize("view", VIEWS)
def test_the_page_is_well_formed_needs_nothing_from_outside_and_no_script(view):
    page = render_page(view)
    parsed = Page(page)
    assert not {"link", "img", "iframe", "object", "embed", "script"} & parsed.tags
    assert not {name for _, name in parsed.attributes} & {"src", "href"}
    assert not re.search(r"url\(|@import|nan", page.partition("</style>")[0])
    assert "nan%" not in page


def test_the_browser_is_told_to_ask_nobody():
    policy = render_page(QLORA_7B).partition("Content-Security-Policy")[2].partition(">")[0]
    assert "default-src 'none'; style-src 'unsafe-inline'" in policy
    assert "script" not in policy


def test_the_numbers_are_those_of_the_plan():
    text = Page(render_page(QLORA_7B)).text
    assert text.index("Memory by part") < text.index("Time and cost") < text.index("Length and micro-batch")
    for bar in BARS:
        assert bar.label in text
        assert f"{bar.total / GIB:.2f}" in text
        for size in bar.parts.values():
            assert f"{size / GIB:.2f}" in text
    for row in DEVICES:
        assert f"{row.devices} × {row.device}" in text
        assert row.why in text
    for shown in ("6.1 (4.9–8.2) h", "$2.68 (2.16–3.61)", "does not fit needs 5.9 GiB, has 3.8", "no price known"):
        assert shown in text
    for cells in GRID.needed_bytes:
        for needed in cells:
            assert f"{needed / GIB:,.1f}" in text
    assert "4,328,521,728" in text
    assert all(why in text and name in text for name, why in QLORA_7B.not_taken)
    assert all(told in text for told in (*QLORA_7B.facts.values(), *QLORA_7B.notes, QLORA_7B.sentence))


def test_bars_are_as_long_as_their_parts_and_the_limit_is_one_line():
    page = render_page(QLORA_7B)
    axis = memory_axis(LIMIT / GIB, [bar.total / GIB for bar in BARS])
    pieces = re.findall(r'class="part" style="left:([\d.]+)%;width:([\d.]+)%;[^>]*title="(\w+) ([\d.]+) GiB"', page)
    assert len(pieces) == sum(len(bar.parts) for bar in BARS)
    for left, width, _, size in pieces:
        expected = 100 * min(float(size) / axis.end, 1 - float(left) / 100)  # the last bar is cut off
        assert float(width) == pytest.approx(expected, abs=0.02)
    limits = re.findall(r'class="limit" style="left:([\d.]+)%"', page)
    assert len(limits) == len(BARS)
    assert [float(left) for left in limits] == pytest.approx([100 * LIMIT / GIB / axis.end] * len(BARS), abs=0.01)
    assert page.count('class="cut"') == 1


def test_exactly_the_cells_that_do_not_fit_are_hatched_and_the_line_runs_between():
    page = render_page(QLORA_7B)
    heat = page[page.index('class="heat"') :]
    cells = re.findall(r'<td class="((?:beyond|edge-left|edge-top| )*)"[^>]*title="[^"]*: ([\d,.]+) GiB"', heat)
    beyond = [needed > LIMIT for row in GRID.needed_bytes for needed in row]
    assert ["beyond" in css for css, _ in cells] == beyond
    # One cell after the other stops fitting, in each row one earlier: 4 rows have a piece to the left, 4 columns above.
    assert sum("edge-left" in css for css, _ in cells) == 4
    assert sum("edge-top" in css for css, _ in cells) == 4
    assert Page(page).text.count("does not fit") == sum(beyond) + 2  # and one strategy, and one device
    assert heat.count("plan-mark") == 1


@pytest.mark.parametrize(
    ("view", "word"),
    [(QLORA_7B, "Fits."), (NOTHING_FITS, "Does not fit."), (replace(QLORA_7B, limit_bytes=GIB), "Does not fit.")],
)
def test_the_verdict_comes_first(view, word):
    text = Page(render_page(view)).text
    assert text.partition(": plan")[2].startswith(word)


def test_fitting_may_depend_on_more_than_the_device():
    text = Page(render_page(UNKNOWN_RUN)).text
    assert text.partition(": plan")[2].startswith("Does not fit.")  # nothing chosen
    assert "1 × NVIDIA GeForce RTX 4090fits needs 13.5 GiB, has 23.5" in text
    assert "8 × NVIDIA H100 SXM5 80 GBdoes not fit needs 41.2 GiB, has 79.1" in text
    assert "hours" not in text.partition("Time and cost")[2].partition("device")[0]


def test_what_is_not_planned_has_no_part():
    text = Page(render_page(BARE)).text
    for heading in ("Memory by part", "Time and cost", "Length and micro-batch", "Parameters", "Not taken", "Notes"):
        assert heading not in text
    assert "There is nothing to plan." in text
    assert "none of these fits" in Page(render_page(NOTHING_FITS)).text


PLAIN = Page(render_page(renamed(HOSTILE, "plain")))


@settings(max_examples=40, deadline=None)
@given(
    st.text(st.characters(), max_size=30)
    | st.sampled_from([EVIL, "</style>", "\ud800", "\x00", "' onclick='x", "<!--"])
)
def test_foreign_text_adds_no_tag_and_no_attribute(word):
    page = render_page(renamed(HOSTILE, word))
    page.encode("utf-8")
    parsed = Page(page)
    assert parsed.tags == PLAIN.tags
    assert parsed.attributes == PLAIN.attributes


def test_it_is_written_whole_where_it_is_asked(tmp_path):
    file = write_page(QLORA_7B, tmp_path / "new" / "plan.html")
    assert file.read_text(encoding="utf-8").endswith("</html>\n")
    assert file.stat().st_size < 60_000
    assert [each.name for each in file.parent.iterdir()] == ["plan.html"]


@pytest.mark.slow
def test_in_a_browser_it_asks_for_nothing_fits_a_phone_and_nothing_overlaps(tmp_path):
    file = write_page(QLORA_7B, tmp_path / "plan.html")
    with launched() as browser:
        for width in (1200, 390):
            page = browser.new_context(viewport={"width": width, "height": 900}).new_page()
            told = []
            page.on("console", lambda message, told=told: told.append(message.text))
            page.on("request", lambda request, told=told: told.append(request.url))
            page.goto(file.as_uri())
            assert told == [file.as_uri()]
            assert page.evaluate("document.documentElement.scrollWidth") == width
            limits = page.evaluate("[...document.querySelectorAll('.limit')].map(e => e.getBoundingClientRect().x)")
            assert max(limits) - min(limits) < 1
            assert page.evaluate(_OVERLAPPING) == []


# Texts of the pictures that lie over each other, or reach out of their boxes.
_OVERLAPPING = """() => {
  const found = [];
  for (const row of document.querySelectorAll('.plan .row')) {
    const boxes = [...row.querySelectorAll('.name, .told, .ticks span, .above span, .value, .never')]
      .filter(e => e.offsetParent && e.textContent).map(e => [e.textContent, e.getBoundingClientRect()]);
    for (const [i, [a, p]] of boxes.entries()) {
      for (const [b, q] of boxes.slice(i + 1)) {
        const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
        const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
        if (across > 1 && down > 1) found.push([a, b]);
      }
    }
  }
  for (const part of document.querySelectorAll('.part')) {
    if (part.scrollWidth > part.clientWidth + 1) found.push([part.title]);
  }
  return found;
}"""
