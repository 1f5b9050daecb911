"""A real Chromium for the tests of the page, and what they do with its charts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_SHOWN = """plot => [...plot.querySelectorAll('.hoverlayer text')].map(text => {
  const lines = [...text.querySelectorAll('tspan.line')];
  return lines.length ? lines.map(line => line.textContent).join(' ') : text.textContent;
})"""


@contextmanager
def launched() -> Iterator[Any]:
    """A headless browser; the test is skipped where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page with everything it said and asked for, and the charts' own numbers."""

    def __init__(self, browser: Any, **context: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **context})
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, where: Path | str) -> Watched:
        """Load a file or an address and wait for the first chart."""
        self.page.goto(where.resolve().as_uri() if isinstance(where, Path) else where)
        self.page.wait_for_selector(".plot .main-svg")
        return self

    def plot(self, title: str) -> Any:
        """A chart's element, scrolled into view and drawn."""
        found = self.page.locator(f'figure[data-title="{title}"] .plot')
        found.scroll_into_view_if_needed()
        self.page.wait_for_function("plot => Boolean(plot.data)", arg=found.element_handle())
        return found

    def traces(self, title: str) -> list[dict[str, Any]]:
        """What a chart draws; typed arrays as lists, gaps as None."""
        return self.plot(title).evaluate(
            "plot => plot.data.map(t => "
            "({...t, x: Array.from(t.x), y: Array.from(t.y), text: t.text && Array.from(t.text)}))"
        )

    def hover(self, title: str, step: int) -> str:
        """Point at a step and return what is shown, a line for each curve."""
        plot = self.plot(title)
        x = plot.evaluate("(plot, step) => plot._fullLayout.xaxis._offset + plot._fullLayout.xaxis.d2p(step)", step)
        box = plot.bounding_box()
        self.page.mouse.move(0, 0)
        # A whole pixel: the browser cuts fractions off, which may be a step.
        self.page.mouse.move(round(box["x"] + x), box["y"] + box["height"] * 0.6)
        self.page.wait_for_function(
            "([plot, step]) => (plot.querySelector('.hoverlayer')?.textContent || '').includes(`(step ${step})`)",
            arg=[plot.element_handle(), f"{step:,}"],
        )
        return "\n".join(plot.evaluate(_SHOWN))

    def zoom(self, title: str, first: int, last: int) -> None:
        """Drag over the chart from one step to another."""
        plot = self.plot(title)
        start, end = (
            plot.evaluate("(plot, step) => plot._fullLayout.xaxis._offset + plot._fullLayout.xaxis.d2p(step)", step)
            for step in (first, last)
        )
        box = plot.bounding_box()
        height = box["y"] + box["height"] * 0.5
        self.page.mouse.move(box["x"] + start, height)
        self.page.mouse.down()
        self.page.mouse.move(box["x"] + end, height, steps=5)
        self.page.mouse.up()
        self.page.wait_for_selector("#whole:visible")
        self.settle()

    def settle(self) -> None:
        """Wait until drawing that was asked for is done."""
        self.page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 150)))")

    def close(self) -> None:
        self.context.close()
