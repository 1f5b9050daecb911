from __future__ import annotations

import base64

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from report_runs import event, training

from hf_recipes.report.chart_data import _Arrays, chart_data
from hf_recipes.report.history import History
from hf_recipes.report.panels import panels
from hf_recipes.report.scale import wants_log

DTYPES = {"f4": "<f4", "f8": "<f8"}


def unpack(packed: dict) -> np.ndarray:
    """As page.js does it."""
    if "count" in packed:
        return packed["from"] + packed["by"] * np.arange(packed["count"], dtype=float)
    return np.frombuffer(base64.b64decode(packed["b64"]), dtype=DTYPES[packed["type"]])


@given(arrays.arrays(np.float64, st.integers(0, 20)) | arrays.arrays(np.int64, 5, elements=st.integers(0, 2**53 - 1)))
def test_numbers_come_back_bit_for_bit(values):
    box = _Arrays()
    again = unpack(box.packed[box.add(values)])
    assert np.array_equal(again, values.astype(float), equal_nan=True)


def test_logged_32_bit_floats_and_even_steps_take_little_room():
    box = _Arrays()
    steps, losses = np.arange(10, 10_010, 10), np.random.default_rng(0).random(1000).astype("f4").astype("f8")
    assert box.add(losses) == box.add(losses.copy()) == 0
    assert box.packed[0]["type"] == "f4"
    assert box.packed[box.add(steps)] == {"from": 10, "by": 10, "count": 1000}


def test_everything_logged_has_its_panel():
    drawn = panels(History(training(40)))
    shown = {panel.title: [curve.name for curve in panel.curves] for panel in drawn if not panel.folded}
    assert shown == {
        "Loss": ["train", "eval", "eval, domain", "eval, general"],
        "Learning rate": ["learning rate"],
        "Gradient norm before clipping": ["gradient norm"],
        "Tokens per second": ["tokens per second"],
        "Memory (GB)": ["memory gb", "memory total gb"],
        "Utilisation (shares of 1)": ["data wait share", "gpu utilization", "mfu"],
    }
    assert [panel.title for panel in drawn if panel.folded] == ["epoch"]


def test_a_wide_band_is_drawn_on_a_logarithmic_scale():
    """Else the curve would lie on the floor of a band that is as wide downwards as upwards, in factors."""
    edges = {"grad_norm_low": 0.01, "grad_norm_median": 0.6, "grad_norm_high": 36.0}
    events = [event("log", step, grad_norm=0.5 + 0.1 * (step % 3), **edges) for step in range(1, 20)]
    (panel,) = [panel for panel in panels(History(events)) if panel.band]
    assert wants_log(panel.values)


def test_the_band_is_that_of_each_step_where_it_was_logged():
    (panel,) = [panel for panel in panels(History(training(40))) if panel.band]
    assert panel.band.low.points == [(step, 0.3) for step in range(1, 41)]
    assert panel.band.high.points == [(step, 2.1) for step in range(1, 41)]


@pytest.mark.parametrize(
    ("told", "low"),
    [
        ([event("note", 9, detector="grad_norm", band=[0.5, 1.0, 2.0])], [(1, 0.5), (9, 0.5)]),
        (
            [
                event("alarm", 4, detector="grad_norm", low=0.25, median=1.0, high=2.0),
                event("note", 9, detector="grad_norm", band=[0.5, 1.0, 2.0]),
            ],
            [(4, 0.25), (9, 0.5)],
        ),
        ([event("alarm", 4, detector="grad_norm", low=None, median=None, high=None)], None),
        ([event("alarm", 4, detector="grad_norm", low="nan", median=1, high="inf")], None),
        ([event("alarm", 4, detector="loss", low=0.25, median=1.0, high=2.0)], None),
    ],
)
def test_else_the_band_is_what_alarms_and_the_last_note_tell(told, low):
    (panel,) = panels(History([*(event("log", step, grad_norm=1.0) for step in range(1, 10)), *told]))
    assert (panel.band and panel.band.low.points) == low


def test_several_runs_share_charts_and_keep_their_colours():
    first, second = History(training(10)), History([event("log", 1, loss=1.0, extra=2.0)])
    data = chart_data([("a", first), ("b", second)])
    loss = data["charts"][0]
    assert [(curve["name"], curve["colour"]) for curve in loss["curves"]] == [
        ("a train", 0),
        ("a eval", 0),
        ("a eval, domain", 0),
        ("a eval, general", 0),
        ("b", 1),
    ]
    assert [chart["title"] for chart in data["charts"] if chart["folded"]] == ["epoch", "extra"]
    assert "b from 1 at step 1 to 1 at step 1" in loss["summary"]
