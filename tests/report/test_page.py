from __future__ import annotations

import argparse
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.chart import Panel, line_chart
from hf_recipes.report.comparison import choose
from hf_recipes.report.escape import text
from hf_recipes.report.page import render_page, write_report
from hf_recipes.report.panels import panels
from hf_recipes.report.read_run import RunRecord, Saved, read_run
from hf_recipes.report.series import Alarm, Series

VOID = {"meta", "br"}
EVIL = "<script>alert(\"x\")</script><img src=x onerror='y'>&amp;"
ANY_TEXT = st.text(st.characters(), max_size=30) | st.sampled_from([EVIL, "</style>", "\ud800", "\x00", "]]>", "<!--"])


class Page(HTMLParser):
    """Checks that tags nest, and collects tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == [], f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs) -> None:
        self.tags.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs) -> None:
        self.tags.add(tag)
        self.attributes |= {(tag, name) for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def full_record(word: str = "plain", path: Path = Path("runs/demo")) -> RunRecord:
    """Every part filled, with `word` wherever a user's or a model's text can stand."""
    events = [
        {"kind": "begin", "step": 0, "attempt": 1, "time": 0.0},
        {"kind": "log", "step": 1, "attempt": 1, "time": 1.0, "loss": 2.0, "grad_norm": "nan", "learning_rate": 1e-4},
        {"kind": "log", "step": 2, "attempt": 1, "time": 2.0, "loss": 1.0, "grad_norm": 3.0, "learning_rate": 2e-4},
        {"kind": "eval", "step": 2, "attempt": 1, "time": 3.0, "eval_loss": 1.5},
        {"kind": "alarm", "step": 2, "attempt": 1, "time": 3.5, "detector": word, "message": word},
    ]
    side = {"answer": word, "exact": False}
    ledger = {"read": 3, "dropped": {word: {"count": 1, "examples": [{"file": word, "row": 1}]}}, "kept": 2}
    return RunRecord(
        path=path,
        run={
            "name": word,
            "base_model": {"name_or_path": word, "revision": word},
            "recipe": {
                "method": "lora",
                "datasets": [{"path": word, "role": word}],
                "hub_token": "hf_secret",
                word: word,
            },
            "given": ["method"],
            "versions": {word: word},
            "hardware": {"device": word},
        },
        status={"code": 0, "sentence": word},
        data={
            "sources": [{"source": word, **ledger}],
            "train": {"rows": 2},
            "fingerprint": word,
            word: [word, {word: word}],
        },
        evaluation={
            "table": [["JSON that parses", "10.0%", "90.0%"], [word, word, word]],
            "rows": [{"prompt": [{"role": "user", "content": word}], "reference": word, "base": side, "tuned": side}],
            "settings": {"decoding": word},
        },
        events=events,
        saved=[Saved("checkpoint-2", 2, True, False)],
        problems=[word],
    )


def test_the_page_is_well_formed_and_needs_nothing_from_outside():
    page = Page(render_page(full_record()))
    assert not {"script", "link", "img", "iframe"} & page.tags
    assert not {name for _, name in page.attributes} & {"src", "href"}
    for heading in ("Curves", "Evaluation", "Alarms", "What ran", "Data", "Checkpoints and results", "Recipe"):
        assert heading in page.text
    assert "90.0%" in page.text
    assert "1 × plain" in page.text


def test_the_page_follows_dark_mode_and_fits_a_phone():
    page = render_page(full_record())
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport" content="width=device-width' in page


PLAIN = Page(render_page(full_record()))


@settings(max_examples=60, deadline=None)
@given(ANY_TEXT)
def test_foreign_text_adds_no_tag_and_no_attribute(word):
    page = render_page(full_record(word))
    page.encode("utf-8")
    seen = Page(page)
    assert seen.tags <= PLAIN.tags | {"small", "span"}
    assert seen.attributes <= PLAIN.attributes | {("span", "class")}


def test_markup_in_an_answer_is_shown_as_it_stands():
    page = render_page(full_record(EVIL))
    assert "<script" not in page
    assert EVIL in Page(page).text


@given(st.text(st.characters()))
def test_escaped_text_is_inert_and_encodable(value):
    escaped = text(value)
    escaped.encode("utf-8")
    assert not set("<>\"'") & set(escaped)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=12,
)
OBJECT = st.dictionaries(
    st.sampled_from(
        ["recipe", "base_model", "versions", "given", "sources", "table", "rows", "settings", "code", "name"]
    )
    | ANY_TEXT,
    JSON,
    max_size=5,
)
EVENT = st.dictionaries(
    st.sampled_from(["loss", "grad_norm", "num_tokens", "time", "attempt", "detector"]), JSON, max_size=4
)


@settings(max_examples=80, deadline=None)
@given(OBJECT, OBJECT, OBJECT, OBJECT, st.lists(EVENT, max_size=5))
def test_files_of_any_shape_give_a_page(run, status, data, evaluation, events):
    events = [{"kind": "log", "step": step, **event} for step, event in enumerate(events)]
    Page(render_page(RunRecord(Path("x"), run=run, status=status, data=data, evaluation=evaluation, events=events)))


def test_an_empty_directory_says_what_is_missing(tmp_path):
    page = Page(write_report(RunDirectory(tmp_path)).read_text("utf-8"))
    for name in ("run.json", "data.json", "events.jsonl", "evaluation.json"):
        assert f"{name} is not there" in page.text
    assert "not ended" in page.text
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_damaged_files_are_named_and_the_rest_is_shown(tmp_path):
    (tmp_path / "run.json").write_text("{half")
    (tmp_path / "data.json").write_text("[1]")
    (tmp_path / "status.json").write_text('{"code": 1, "sentence": "stopped at step 7: the loss is nan"}')
    page = Page(write_report(RunDirectory(tmp_path)).read_text("utf-8"))
    assert "run.json cannot be read" in page.text
    assert "data.json holds no JSON object" in page.text
    assert "stopped at step 7: the loss is nan" in page.text


def test_secrets_are_not_shown():
    page = render_page(full_record())
    assert "hf_secret" not in page
    assert "hub_token" in page


def test_checkpoints_show_their_marks(tmp_path):
    for name, marks in (("checkpoint-10", ["manifest.json", "verified.json"]), ("checkpoint-9", []), ("adapter", [])):
        (tmp_path / name).mkdir()
        for mark in marks:
            (tmp_path / name / mark).write_text("{}")
    assert read_run(RunDirectory(tmp_path)).saved == [
        Saved("checkpoint-9", 9, False, False),
        Saved("checkpoint-10", 10, True, True),
        Saved("adapter", None, False, False),
    ]


def test_answers_that_show_the_gain_come_first_then_the_mistakes():
    def row(line: int, base: bool, tuned: bool) -> dict:
        return {"line": line, "base": {"exact": base}, "tuned": {"exact": tuned}}

    rows = [row(1, True, True), row(2, False, False), *(row(line, False, True) for line in range(3, 8))]
    assert [chosen["line"] for chosen in choose(rows)] == [3, 4, 5, 2]
    assert choose([row(1, True, True), "odd"]) == [row(1, True, True)]


def svg(curve: Series, alarms: list[Alarm] = ()) -> ElementTree.Element:
    return ElementTree.fromstring(line_chart(Panel("Loss", [("train", curve)]), alarms))


def coordinates(element: ElementTree.Element) -> list[list[tuple[float, float]]]:
    lines = [line.attrib["points"] for line in element.iter("polyline")]
    return [[tuple(map(float, pair.split(","))) for pair in line.split()] for line in lines]


def test_a_chart_draws_down_as_values_fall_and_breaks_at_nan():
    curve = Series("loss", [(1, 4.0), (2, 3.0), (4, 2.0), (5, 1.0)], [(3, "nan")])
    chart = svg(curve, [Alarm(3, "non_finite", EVIL, 1), Alarm(99, "late", "outside", 1)])
    left, right = coordinates(chart)
    assert [len(left), len(right)] == [2, 2]
    heights = [y for _, y in left + right]
    assert heights == sorted(heights)  # SVG's y grows downwards
    classes = [group.attrib["class"] for group in chart.iter("g")]
    assert sorted(classes) == ["alarm", "bad"]  # the alarm outside the steps drawn is not shown
    assert "not finite at 1 steps" in chart.attrib["aria-label"]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 10**7), st.floats(-1e300, 1e300)), max_size=50, unique_by=lambda point: point[0])
)
def test_every_point_lies_in_the_picture(points):
    for line in coordinates(svg(Series("x", sorted(points), []))):
        assert all(0 <= x <= 480 and 0 <= y <= 250 for x, y in line)


def test_panels_are_those_that_were_logged():
    assert [panel.title for panel in panels(full_record().events)] == [
        "Loss",
        "Learning rate",
        "Gradient norm before clipping",
    ]


def test_curves_png_shows_the_panels(tmp_path):
    run = RunDirectory(tmp_path)
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, full_record("$x_$").events)))
    write_report(run)
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[offset : offset + 4], "big") for offset in (16, 20))
    assert (width, height) == (1320, 816)  # 11 by 2 rows of 3.4 inches at 120 dots
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("as_json", [False, True])
def test_the_verb_writes_both_and_prints_their_paths(tmp_path, capsys, as_json):
    from hf_recipes.cli import report

    (tmp_path / "run.json").write_text("{}")
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    assert report.run(parser.parse_args([str(tmp_path), *(["--json"] if as_json else [])])) == 0
    out = capsys.readouterr().out
    paths = list(json.loads(out).values()) if as_json else out.split()
    assert paths == [str(tmp_path / "report.html"), str(tmp_path / "curves.png")]
    assert all(Path(path).stat().st_size for path in paths)


def test_the_room_imports_neither_torch_nor_matplotlib():
    code = "import sys, hf_recipes.cli.report, hf_recipes.report.page; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "hf_recipes.report.page" in loaded
    assert not {"torch", "matplotlib"} & set(loaded)
