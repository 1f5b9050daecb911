"""The page in a real Chromium: what is drawn, what is shown, what is asked of the network (nothing)."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
from browser import Watched, launched
from report_runs import event, training, write_events
from sampled import sampled
from test_page import EVIL, full_record

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.page import render_comparison, render_page
from hf_recipes.report.read_run import RunReader, read_run
from hf_recipes.report.serve import make_server

pytestmark = pytest.mark.slow
STEPS = 400
ALARM = "Step 120: the gradient norm 9.3 is exploding. Halve learning_rate."


@pytest.fixture(scope="module")
def browser():
    with launched() as opened:
        yield opened


@pytest.fixture
def watched(browser):
    pages = []

    def make(**context) -> Watched:
        pages.append(Watched(browser, **context))
        return pages[-1]

    yield make
    for page in pages:
        page.close()


def logged_run(directory: Path) -> Path:
    """A run with NaN at steps 181 to 183 and an alarm at 120, and its page."""
    events = training(STEPS)
    for each in events:
        if each["kind"] == "log" and each["step"] in (181, 182, 183):
            each["grad_norm"] = math.nan
    write_events(directory, [*events, event("alarm", 120, detector="grad_norm", message=ALARM)])
    page = directory / "report.html"
    page.write_text(render_page(read_run(RunDirectory(directory))), encoding="utf-8")
    return page


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    return logged_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def shared(browser, run_page):
    """The page, opened once for the tests that leave it as they found it: to load it takes seconds."""
    page = Watched(browser).open(run_page)
    yield page
    page.close()


def written(page: Path, kind: str, name: str) -> dict[int, float]:
    """The numbers of events.jsonl."""
    lines = map(json.loads, (page.parent / "events.jsonl").read_text().splitlines())
    return {line["step"]: line[name] for line in lines if line["kind"] == kind and name in line}


def value_shown(told: str, name: str, step: int) -> float:
    """The number that the hover box has for a curve, which must be that of `step`."""
    (line,) = [line for line in told.splitlines() if line.startswith(f"{name} ")]
    shown, _, place = line.removeprefix(f"{name} ").partition(" ")
    assert place == f"(step {step:,})"
    return float(shown)


def names(traces) -> list[str]:
    return [trace["name"] for trace in traces]


def test_it_draws_all_panels_says_nothing_and_asks_for_nothing(run_page, shared):
    for title in ("Loss", "Learning rate", "Gradient norm before clipping", "Tokens per second", "Memory (GB)"):
        assert shared.traces(title)
    shared.page.click("#others summary")
    assert names(shared.traces("epoch"))[0] == "epoch"
    shared.settle()
    assert shared.said == []
    assert shared.asked == [run_page.resolve().as_uri()]


@pytest.mark.parametrize("step", sampled([1, 100, 237, STEPS], keep=[237]))
def test_values_shown_on_hover_are_those_of_the_event_log(run_page, shared, step):
    for title, name, field in (
        ("Loss", "train", "loss"),
        ("Learning rate", "learning rate", "learning_rate"),
        ("Gradient norm before clipping", "gradient norm", "grad_norm"),
    ):
        shown = value_shown(shared.hover(title, step), name, step)
        assert shown == written(run_page, "log", field)[step]
    if step == 100:
        assert value_shown(shared.hover("Loss", step), "eval", step) == written(run_page, "eval", "eval_loss")[100]


def test_every_number_drawn_is_one_of_the_event_log(run_page, shared):
    fields = {"Loss": "loss", "Tokens per second": "tokens_per_second", "Learning rate": "learning_rate"}
    for title, field in fields.items():
        trace = shared.traces(title)[0]
        assert dict(zip(trace["x"], trace["y"], strict=True)) == written(run_page, "log", field)


def test_an_alarm_tells_on_the_curve_what_was_seen_and_what_to_do(shared):
    told = " ".join(shared.hover("Gradient norm before clipping", 120).split())
    for part in ("grad_norm", "gradient norm 9.3 is exploding", "Halve learning_rate"):
        assert part in told


def test_the_band_is_drawn_round_the_gradient_norm(shared):
    traces = {trace["name"]: trace for trace in shared.traces("Gradient norm before clipping")}
    assert set(traces["band, low"]["y"]) == {0.3}
    assert set(traces["healthy band"]["y"]) == {2.1}
    assert traces["healthy band"]["fill"] == "tonexty"


def test_a_gap_where_values_are_not_finite_and_a_cross_for_each(shared):
    traces = {trace["name"]: trace for trace in shared.traces("Gradient norm before clipping")}
    curve = traces["gradient norm"]
    place = curve["x"].index(180)
    assert curve["y"][place + 1] is None
    assert curve["x"][place + 2] == 184
    assert curve.get("connectgaps") is False
    crosses = traces["gradient norm, not finite"]
    assert (crosses["x"], crosses["text"]) == ([181, 182, 183], ["nan"] * 3)


def test_the_log_scale_goes_on_and_off(shared):
    kind = "plot => plot._fullLayout.yaxis.type"
    toggle = shared.page.locator('figure[data-title="Loss"] button.log')
    assert (shared.plot("Loss").evaluate(kind), toggle.get_attribute("aria-pressed")) == ("linear", "false")
    toggle.click()
    shared.settle()
    assert (shared.plot("Loss").evaluate(kind), toggle.get_attribute("aria-pressed")) == ("log", "true")
    assert shared.plot("Learning rate").evaluate(kind) == "linear"
    toggle.click()
    shared.settle()
    assert shared.plot("Loss").evaluate(kind) == "linear"


def test_smoothing_never_hides_the_raw_points(run_page, watched):
    seen = watched().open(run_page)
    raw = written(run_page, "log", "loss")
    seen.page.evaluate(
        "() => { const slider = document.getElementById('smoothing'); slider.value = 0.9;"
        "slider.dispatchEvent(new Event('input')); }"
    )
    seen.settle()
    traces = seen.traces("Loss")
    assert dict(zip(traces[0]["x"], traces[0]["y"], strict=True)) == raw
    assert 0.2 < traces[0]["opacity"] < 1
    smooth = traces[names(traces).index("train, smoothed")]
    average, mass = 0.0, 0.0
    for value in list(raw.values()):
        average, mass = 0.9 * average + 0.1 * value, 0.9 * mass + 0.1
    assert smooth["y"][-1] == pytest.approx(average / mass, rel=1e-12)
    shown = seen.hover("Loss", 237)
    assert value_shown(shown, "train", 237) == raw[237]  # still the raw number
    assert "eval, smoothed" not in names(traces)


def test_a_zoom_holds_for_all_charts_and_a_double_click_undoes_it(run_page, watched):
    seen = watched().open(run_page)
    seen.zoom("Loss", 100, 200)
    for title in ("Loss", "Learning rate"):
        low, high = seen.plot(title).evaluate("plot => plot._fullLayout.xaxis.range")
        assert (low, high) == pytest.approx((100, 200), abs=3)
    seen.plot("Loss").dblclick(position={"x": 200, "y": 150})
    seen.page.wait_for_selector("#whole", state="hidden")
    seen.settle()
    low, high = seen.plot("Learning rate").evaluate("plot => plot._fullLayout.xaxis.range")
    assert low < 1
    assert high > STEPS


def test_it_is_dark_where_the_reader_is_and_follows_a_change(run_page, watched):
    seen = watched(color_scheme="dark").open(run_page)
    ink = "plot => [getComputedStyle(document.body).backgroundColor, plot.data[0].line.color]"
    dark = seen.plot("Learning rate").evaluate(ink)
    seen.page.emulate_media(color_scheme="light")
    seen.settle()
    light = seen.plot("Learning rate").evaluate(ink)
    assert dark == ["rgb(16, 19, 23)", "#6ea8fe"]
    assert light == ["rgb(246, 247, 249)", "#2563eb"]


def test_a_phone_of_360_pixels_scrolls_no_page_sideways(run_page, watched):
    seen = watched(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True).open(run_page)
    for title in ("Loss", "Utilisation (shares of 1)"):
        box = seen.plot(title).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 360
    seen.page.click("#others summary")
    seen.page.evaluate("() => document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
    seen.page.tap("button[aria-label='zoom in']")
    seen.settle()
    low, high = seen.plot("Loss").evaluate("plot => plot._fullLayout.xaxis.range")
    assert high - low == pytest.approx((STEPS - 1) * 1.04 / 2, rel=0.01)


def test_hostile_text_is_shown_and_does_nothing(tmp_path, watched):
    word = f"{EVIL}</script><script>document.title='owned'</script>\u2028<a href='javascript:alert(1)'>x</a>"
    write_events(
        tmp_path,
        [
            event("log", 1, loss=1.0, **{word: 1.0}),
            event("log", 2, loss=2.0, **{word: 2.0}),
            event("eval", 2, **{f"eval_{word}_loss": 1.5}),
            event("alarm", 2, detector=word, message=word),
        ],
    )
    (tmp_path / "run.json").write_text(json.dumps({"name": word, "recipe": {word: word}}))
    page = tmp_path / "report.html"
    record = read_run(RunDirectory(tmp_path))
    page.write_text(render_page(record), encoding="utf-8")
    seen = watched().open(page)
    told = seen.hover("Loss", 2)
    seen.page.click("#others summary")
    seen.settle()
    assert "document.title='owned'" in told.replace("\n", "")
    assert seen.page.evaluate("document.querySelectorAll('img, a, figure script').length") == 0
    assert seen.page.title().startswith("<script>alert")
    assert (seen.said, len(seen.asked)) == ([], 1)
    page.write_text(render_page(full_record(word)), encoding="utf-8")
    seen.open(page)
    assert seen.said == []


def test_two_runs_are_overlaid_in_their_colours(tmp_path, watched):
    records = []
    for name, seed in (("first", 0), ("second", 1)):
        write_events(tmp_path / name, training(50, seed))
        records.append(read_run(RunDirectory(tmp_path / name)))
    page = tmp_path / "comparison.html"
    page.write_text(render_comparison(records), encoding="utf-8")
    seen = watched().open(page)
    first, second = (
        next(trace for trace in seen.traces("Loss") if trace["name"] == f"{name} train") for name in ("first", "second")
    )
    assert first["line"]["color"] != second["line"]["color"]
    shown = seen.hover("Tokens per second", 25)
    for name in ("first", "second"):
        value = written(tmp_path / name / "report.html", "log", "tokens_per_second")[25]
        assert value_shown(shown, name, 25) == value
    assert (seen.said, len(seen.asked)) == ([], 1)


@pytest.mark.trials
def test_a_million_points_stay_usable(tmp_path, watched):
    """Few points are drawn, none of the extremes is lost, and a zoom shows every one."""
    count, spike = 1_000_000, 777_777
    losses = 2 + np.random.default_rng(0).random(count)
    losses[spike - 1] = 50.0
    losses[500_000] = math.nan
    reader = RunReader(RunDirectory(tmp_path))
    for step, loss in enumerate(losses.tolist(), start=1):
        reader.history.add({"kind": "log", "step": step, "loss": loss})
    page = tmp_path / "report.html"
    page.write_text(render_page(reader.read()), encoding="utf-8")
    seen = watched().open(page)
    trace = seen.traces("Loss")[0]
    assert len(trace["x"]) <= 2002
    assert max(value for value in trace["y"] if value is not None) == 50.0
    assert trace["y"].count(None) == 1
    for first, last in ((700_000, 850_000), (775_000, 780_000), (777_600, 777_900)):
        seen.zoom("Loss", first, last)
    low, high = seen.plot("Loss").evaluate("plot => plot._fullLayout.xaxis.range")
    drawn = dict(zip(*(seen.traces("Loss")[0][axis] for axis in "xy"), strict=True))
    inside = range(math.ceil(low), math.floor(high) + 1)
    assert 200 < len(inside) < 400
    assert {step: drawn[step] for step in inside} == {step: losses[step - 1] for step in inside}
    assert value_shown(seen.hover("Loss", spike - 1), "train", spike - 1) == losses[spike - 2]
    assert seen.said == []


def test_a_live_page_takes_in_what_is_new_and_keeps_the_zoom(tmp_path, watched):
    write_events(tmp_path, training(50))
    with make_server([RunDirectory(tmp_path)], 0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}/"
            seen = watched().open(address)
            seen.zoom("Loss", 10, 30)
            zoomed = seen.plot("Loss").evaluate("plot => plot._fullLayout.xaxis.range")
            write_events(tmp_path, [event("log", 25, loss=0.125), event("log", 51, val=7.0)], mode="a")
            alarm = event("alarm", 26, detector="loss", message="Step 26: the loss jumped.")
            write_events(tmp_path, [alarm], mode="a")
            seen.page.get_by_text("Step 26: the loss jumped.").wait_for()
            seen.settle()
            assert seen.plot("Loss").evaluate("plot => plot._fullLayout.xaxis.range") == zoomed
            assert value_shown(seen.hover("Loss", 25), "train", 25) == 0.125
            assert "alarms" in names(seen.traces("Loss"))
            assert seen.page.locator('figure[data-title="val"]').count() == 1  # a chart that was not there before
            assert "at step 51" in seen.page.inner_text(".verdict")
        finally:
            server.shutdown()
            server.server_close()
        seen.page.get_by_text("the server does not answer").wait_for()
        assert all(url.startswith(address) for url in seen.asked)
        assert not [line for line in seen.said if "Failed to load resource" not in line]
