from __future__ import annotations

import math
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from report_runs import event, training

from hf_recipes.report.history import History
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.series import Series
from hf_recipes.report.terminal import BLOCKS, PLAIN_BLOCKS, render_text, sparkline


def test_a_sparkline_by_hand():
    # eight levels from 0 to 7; the highest falls into the last level
    assert sparkline(Series.of(enumerate(range(8))), 8) == BLOCKS
    # two steps a column: means 0.5, 2.5, 4.5, 6.5 lie 0, 1/3, 2/3 and all of the way
    assert sparkline(Series.of(enumerate(range(8))), 4) == "▁▃▆█"
    assert sparkline(Series.of([(0, 1.0), (1, math.nan), (2, 2.0)]), 3) == "▁×█"
    assert sparkline(Series.of([(0, 1.0), (9, 2.0), (10, 2.0)]), 3) == "▁ █"
    assert sparkline(Series.of([(0, 3.0), (1, 3.0)]), 5) == "▁▁"
    assert sparkline(Series.of([]), 5) == ""


@given(st.lists(st.floats(), min_size=1, max_size=60), st.integers(1, 30))
def test_a_sparkline_of_anything_has_the_width_asked(values, columns):
    line = sparkline(Series.of(enumerate(values)), columns)
    assert len(line) == min(columns, len(values))
    assert set(line) <= {*BLOCKS, "×", " "}


def test_the_text_has_verdict_curves_and_alarms():
    alarm = event("alarm", 9, detector="loss", message="Step 9: the loss is up. Halve learning_rate.")
    events = [*training(40), alarm, event("log", 39, grad_norm="nan", loss=0.5)]
    shown = render_text([RunRecord(Path("demo"), status={"code": 0, "sentence": "done"}, history=History(events))], 100)
    assert shown.startswith("demo: Finished with 1 alarm, done\n")
    for name in ("loss, train", "loss, eval, general", "learning rate", "gradient norm", "tokens per second"):
        assert f"  {name} " in shown
    assert "1 not finite" in shown
    assert "loss: Step 9: the loss is up. Halve learning_rate." in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_no_control_character_reaches_the_terminal():
    hostile = "\x1b]0;owned\x07\x1b[2J\u202e"
    events = [event("alarm", 1, detector=hostile, message=hostile), event("eval", 1, **{f"eval_{hostile}_loss": 1.0})]
    record = RunRecord(Path("x"), status={"code": 1, "sentence": hostile}, history=History(events))
    assert not {"\x1b", "\x07", "\u202e"} & set(render_text([record], 80))


def test_a_terminal_without_block_characters_gets_plain_ones():
    shown = render_text([RunRecord(Path("x"), history=History(training(20)))], 80, PLAIN_BLOCKS)
    assert not set(BLOCKS) & set(shown)


def test_an_empty_run_says_so():
    assert "Nothing was logged yet." in render_text([RunRecord(Path("x"))], 80)
