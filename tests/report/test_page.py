from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_page import Page

from hf_recipes.core.errors import UserError
from hf_recipes.core.escape import plain, script_json, text
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report import page as page_module
from hf_recipes.report.comparison import choose
from hf_recipes.report.history import History
from hf_recipes.report.page import content, render_comparison, render_page, write_report
from hf_recipes.report.read_run import RunRecord, Saved

EVIL = "<script>alert(\"x\")</script><img src=x onerror='y'>&amp;"
ANY_TEXT = st.text(st.characters(), max_size=30) | st.sampled_from([EVIL, "</style>", "\ud800", "\x00", "]]>", "<!--"])


def drawn_samples(word: str) -> list[dict]:
    """A right, a wrong and an unjudged answer."""
    return [
        {"prompt": word, "answer": word, "reference": word, "ok": True},
        {"prompt": [{"role": "user", "content": word}], "answer": word, "ok": False, "why": word},
        {"prompt": word, "answer": word, "ok": None},
    ]


def full_record(word: str = "plain", path: Path = Path("runs/demo")) -> RunRecord:
    """Every part filled, with `word` wherever a user's or a model's text can stand."""
    events = [
        {"kind": "begin", "step": 0, "attempt": 1, "time": 0.0},
        {"kind": "log", "step": 1, "attempt": 1, "time": 1.0, "loss": 2.0, "grad_norm": "nan", "learning_rate": 1e-4},
        {"kind": "log", "step": 2, "attempt": 1, "time": 2.0, "loss": 1.0, "grad_norm": 3.0, "learning_rate": 2e-4},
        {"kind": "eval", "step": 2, "attempt": 1, "time": 3.0, "eval_loss": 1.5},
        {"kind": "alarm", "step": 2, "attempt": 1, "time": 3.5, "detector": word, "message": word},
        {"kind": "note", "step": 2, "attempt": 1, "time": 3.6, "detector": word, "message": word},
        {"kind": "generate", "step": 2, "attempt": 1, "time": 3.7, "format_share": 0.5, "samples": drawn_samples(word)},
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
        history=History(events),
        saved=[Saved("checkpoint-2", 2, True, False)],
        problems=[word],
    )


def shown(record: RunRecord) -> str:
    """The page without style and scripts."""
    parts = content([record])
    return parts.head + parts.rest


def test_the_page_is_well_formed_and_needs_nothing_from_outside():
    page = Page(render_page(full_record()))
    assert not {"link", "img", "iframe", "object", "embed"} & page.tags
    assert not {name for _, name in page.attributes} & {"src", "href"}
    headings = ["Curves", "Alarms", "Evaluation", "Sample generations", "Data", "Checkpoints and results", "Recipe"]
    places = [page.text.index(heading) for heading in [*headings, "Environment"]]
    assert places == sorted(places)
    assert "90.0%" in page.text
    assert "1 × plain" in page.text
    assert "50% of the answers keep to the format" in page.text


def test_the_browser_is_told_to_ask_nobody():
    policy = render_page(full_record()).partition("Content-Security-Policy")[2].partition(">")[0]
    assert "default-src 'none'" in policy
    assert "connect-src 'none'" in policy
    assert "http" not in policy


def test_the_page_follows_dark_mode_and_fits_a_phone():
    page = render_page(full_record())
    assert "prefers-color-scheme: dark" in page
    assert 'name="viewport" content="width=device-width' in page


def test_inlined_scripts_cannot_end_early():
    for script in (page_module.plotly_script(), page_module._own("page.js")):
        assert "</script" not in script.lower()
        assert "<!--" not in script


def test_without_plotly_one_sentence_says_what_to_install(monkeypatch):
    page_module.plotly_script.cache_clear()
    monkeypatch.setattr(page_module.importlib.util, "find_spec", lambda name: None)
    try:
        with pytest.raises(UserError, match="pip install 'plotly>=6'"):
            page_module.plotly_script()
    finally:
        page_module.plotly_script.cache_clear()


PLAIN = Page(shown(full_record()))


@settings(max_examples=60, deadline=None)
@given(ANY_TEXT)
def test_foreign_text_adds_no_tag_and_no_attribute(word):
    page = shown(full_record(word))
    page.encode("utf-8")
    seen = Page(page)
    assert seen.tags <= PLAIN.tags | {"small", "span"}
    assert seen.attributes <= PLAIN.attributes | {("span", "class")}


@settings(max_examples=60, deadline=None)
@given(ANY_TEXT)
def test_foreign_text_stays_inside_the_embedded_data(word):
    data = content([full_record(word)]).data
    embedded = script_json(data)
    assert embedded.isascii()
    assert "<" not in embedded
    assert json.loads(embedded) == json.loads(json.dumps(data))
    assert data["alarms"] == [{"run": 0, "step": 2, "detector": word, "message": word}]


def test_markup_in_an_answer_is_shown_as_it_stands():
    page = render_page(full_record(EVIL))
    assert page.count("<script") == 3 + page_module.plotly_script().count("<script")  # data, Plotly, ours
    assert EVIL in Page(page).text


@given(st.text(st.characters()))
def test_escaped_text_is_inert_and_encodable(value):
    escaped = text(value)
    escaped.encode("utf-8")
    assert not set("<>\"'") & set(escaped)


@given(st.text(st.characters()))
def test_text_for_a_terminal_is_one_printable_line(value):
    line = plain(value)
    line.encode("utf-8")
    assert not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in line)


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
    st.sampled_from(["loss", "grad_norm", "num_tokens", "time", "attempt", "detector", "band", "samples", "max_steps"]),
    JSON,
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(OBJECT, OBJECT, OBJECT, OBJECT, st.lists(EVENT, max_size=5))
def test_files_of_any_shape_give_a_page(run, status, data, evaluation, events):
    kinds = ("log", "alarm", "begin", "generate", "end")
    history = History({"kind": kinds[step % 5], "step": step, **event} for step, event in enumerate(events))
    record = RunRecord(Path("x"), run=run, status=status, data=data, evaluation=evaluation, history=history)
    Page(shown(record))
    script_json(content([record]).data)


def test_an_empty_directory_says_what_is_missing(tmp_path):
    page = Page(write_report(RunDirectory(tmp_path)).read_text("utf-8"))
    for told in (
        "run.json is not there",
        "data.json is not there",
        "evaluation.json is not there",
        "no event is there",
    ):
        assert told in page.text
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_secrets_are_not_shown():
    page = shown(full_record())
    assert "hf_secret" not in page
    assert "hub_token" in page


def test_a_run_without_samples_has_no_such_section():
    assert "Sample generations" not in shown(RunRecord(Path("x")))


def test_answers_that_show_the_gain_come_first_then_the_mistakes():
    def row(line: int, base: bool, tuned: bool) -> dict:
        return {"line": line, "base": {"exact": base}, "tuned": {"exact": tuned}}

    rows = [row(1, True, True), row(2, False, False), *(row(line, False, True) for line in range(3, 8))]
    assert [chosen["line"] for chosen in choose(rows)] == [3, 4, 5, 2]
    assert choose([row(1, True, True), "odd"]) == [row(1, True, True)]


def test_the_page_of_two_runs_has_both_and_what_differs():
    first, second = full_record(), full_record(path=Path("runs/other"))
    second.run["recipe"].update(method="full", hub_token="hf_other")
    page = Page(render_comparison([first, second]))
    assert "demo: Finished with 1 alarm" in page.text
    assert "other: Finished with 1 alarm" in page.text
    differing = page.text.partition("Recipes: what differs")[2]
    assert "method" in differing
    assert "lora" in differing
    assert "full" in differing
    assert "hf_other" not in page.text
    assert "max_length" not in differing
    data = content([first, second]).data
    assert data["runs"] == ["demo", "other"]
    assert {curve["run"] for curve in data["charts"][0]["curves"]} == {0, 1}


def test_runs_of_one_name_are_told_apart_by_their_places():
    records = [RunRecord(Path(path)) for path in ("/a/first/run", "/a/second/run", "/a/other")]
    assert content(records).data["runs"] == ["first/run", "second/run", "other"]


def test_curves_png_shows_the_panels(tmp_path):
    run = RunDirectory(tmp_path)
    events = [
        {"kind": "log", "step": step, "loss": 1.0, "grad_norm": "nan" if step == 3 else 1.0, "learning_rate": 1e-4}
        for step in range(9)
    ]
    band = {"kind": "note", "step": 8, "detector": "grad_norm", "band": [0.5, 1.0, 2.0]}
    part = {"kind": "eval", "step": 8, "eval_$x_$_loss": 1.0}
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, [*events, band, part])))
    write_report(run)
    picture = (tmp_path / "curves.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    width, height = (int.from_bytes(picture[offset : offset + 4], "big") for offset in (16, 20))
    assert (width, height) == (1320, 816)  # 11 by 2 rows of 3.4 inches at 120 dots
    assert not list(tmp_path.glob(".*"))


def test_the_room_imports_neither_torch_nor_plotly_nor_matplotlib():
    code = "import sys, hf_recipes.cli.report, hf_recipes.report.serve, hf_recipes.report.terminal; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "hf_recipes.report.page" in loaded
    assert not {"torch", "transformers", "matplotlib", "plotly"} & set(loaded)
