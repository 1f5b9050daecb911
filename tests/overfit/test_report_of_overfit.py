"""The overfit test on the page of a run."""

from __future__ import annotations

from pathlib import Path

from hf_recipes.report.history import History
from hf_recipes.report.overfit_result import overfit_result
from hf_recipes.report.read_run import RunRecord


def page_part(*events):
    return overfit_result(
        RunRecord(Path("run"), history=History({"step": 0, "attempt": 1, **event} for event in events))
    )


def test_the_sentence_stands_on_the_page_and_cannot_be_markup():
    shown = page_part({"kind": "overfit", "sentence": "Overfit test passed: <|im_end|> & more."})
    assert "Overfit test passed: &lt;|im_end|&gt; &amp; more." in shown


def test_no_test_no_section():
    assert page_part({"kind": "begin"}) == ""
    assert page_part({"kind": "overfit", "sentence": None}) == ""
