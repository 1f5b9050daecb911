from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from hf_recipes.data.inspection.inspection import inspect_data
from hf_recipes.data.inspection.page import render_page

HOSTILE = "</script></pre><script>document.title='run'</script><img src=x onerror=alert(1)> & \"quotes\" \x00\x1b[2J"


class Page(HTMLParser):
    """The elements and texts of a page; raw text of style and script is kept apart."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.outside, self._open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._open.append(tag)
        self.outside += [value for name, value in attributes if name in ("src", "href", "srcset", "action")]
        assert not any(name.startswith("on") for name, _ in attributes)

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        if self._open and self._open[-1] not in ("script", "style"):
            self.texts.append(data)


@pytest.fixture
def hostile(prepare, tokenizer):
    pairs = [(f"Order {n}: {HOSTILE}", f"{n} {HOSTILE}") for n in range(12)]
    data = prepare(pairs, source={"dropped": {HOSTILE: {"count": 1, "examples": [{"file": HOSTILE, "row": 1}]}}})
    return inspect_data(data, tokenizer, batches=2, recipe=HOSTILE, model=HOSTILE)


def test_hostile_data_stays_text(hostile):
    page = Page(render_page(hostile))
    assert (page.tags.count("script"), page.tags.count("img")) == (1, 0)
    assert page.outside == []
    shown = "".join(page.texts)
    # The two control characters are not allowed in HTML and are shown as replaced.
    assert shown.count(HOSTILE.replace("\x00", "�").replace("\x1b", "�")) >= 24


def test_every_learned_part_is_marked_and_whole(varied, tokenizer):
    page = Page(render_page(inspect_data(varied, tokenizer, batches=5)))
    assert page.tags.count("article") == 40
    assert page.tags.count("mark") == 41  # one in the legend
    assert page.tags.count("svg") == 2


def test_verdicts_come_before_everything_else(varied, tokenizer):
    page = Page(render_page(inspect_data(varied, tokenizer)))
    headings = [text for text in page.texts if text in ("Verdict", "Sources", "Lengths", "Batches")]
    assert headings == ["Verdict", "Sources", "Lengths", "Batches"]


@pytest.mark.slow
def test_search_filters_the_samples_in_a_browser(varied, tokenizer, tmp_path):
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium")
    page = render_page(inspect_data(varied, tokenizer, batches=5))
    typed = 'field.value = "ORDERS.JSONL:7 "; field.dispatchEvent(new Event("input"));'
    path = tmp_path / "page.html"
    path.write_text(page.replace("</script>", f"{typed}</script>"), encoding="utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    dom = subprocess.run(
        [*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=120, check=True
    ).stdout
    assert "1 of 40 samples" in dom
    assert dom.count('<article hidden="">') == 39
    assert dom.count('<div class="batch" hidden="">') == 4
