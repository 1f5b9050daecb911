from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.report.history import History


def event(kind: str, step: int, attempt: int = 1, **values) -> dict:
    return {"kind": kind, "step": step, "attempt": attempt, **values}


def losses(events: list[dict]) -> list[tuple[int, float]]:
    return History(events).series("log", "loss").points


def test_a_resumed_run_replaces_what_it_replays():
    first = [event("begin", 0), *(event("log", step, loss=1.0) for step in range(1, 8))]
    second = [event("begin", 4, 2), *(event("log", step, 2, loss=2.0) for step in range(5, 7))]
    # resumed at 4: steps 1-4 of the first stand, 5 and 6 are replayed, 7 was never reached again and is gone
    assert losses(first + second) == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 2.0), (6, 2.0)]
    assert History(first + second).last_step == 6


def test_a_resume_from_the_start_leaves_nothing_of_the_first_attempt():
    assert losses([event("log", 3, loss=1.0), event("begin", 0, 2), event("log", 1, 2, loss=2.0)]) == [(1, 2.0)]


def test_an_attempt_without_a_begin_event_starts_before_its_first():
    events = [*(event("log", step, loss=1.0) for step in (2, 4, 6)), event("log", 4, 2, loss=2.0)]
    assert losses(events) == [(2, 1.0), (4, 2.0)]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20), st.floats()), max_size=60))
def test_the_newest_attempt_stands_whatever_the_order_of_the_lines(rows):
    curve = History(event("log", step, attempt, loss=value) for attempt, step, value in rows).series("log", "loss")
    last = max((attempt for attempt, _, _ in rows), default=0)
    newest = {step: value for attempt, step, value in rows if attempt == last}
    kept = dict(zip(curve.steps.tolist(), curve.values.tolist(), strict=True))
    for step, value in newest.items():
        assert kept[step] == value or (math.isnan(value) and math.isnan(kept[step]))


def test_values_of_other_kinds_and_no_numbers_are_not_mixed_in():
    history = History([event("log", 1, loss=None), event("eval", 1, loss=1.0), event("log", 2, loss="nan", flag=True)])
    assert history.series("eval", "loss").points == [(1, 1.0)]
    assert history.series("log", "loss").bad == [(2, "nan")]
    assert history.names("log") == ["loss"]


@pytest.mark.parametrize(
    "odd", [{}, {"step": "3"}, {"step": True, "kind": "log"}, {"step": 2**60, "kind": "log"}, {"step": None}]
)
def test_events_without_a_place_are_refused(odd):
    assert not History().add(odd)


@given(
    st.dictionaries(
        st.sampled_from(["kind", "attempt", "time", "loss", "num_tokens", "detector"]),
        st.one_of(st.none(), st.text(max_size=3), st.floats(), st.integers(), st.lists(st.integers(), max_size=2)),
    )
)
def test_events_of_a_strange_shape_do_no_harm(values):
    attempt = values.get("attempt")
    newest = max(1, attempt) if isinstance(attempt, int) else 1
    history = History([{"step": 1, **values}, event("log", 2, newest, loss=1.0)])
    assert (2, 1.0) in history.series("log", "loss").points
    assert history.standing() is not None
    assert history.alarms() is not None


def test_throughput_as_logged_wins_over_the_derived():
    events = [event("log", 1, tokens_per_second=5.0, num_tokens=1, time=0.0), event("log", 2, num_tokens=99, time=1.0)]
    assert History(events).throughput().points == [(1, 5.0)]


def test_derived_throughput_leaves_out_evaluations_and_resumes():
    events = [
        event("log", 1, num_tokens=100, time=0.0),
        event("log", 2, num_tokens=300, time=2.0),  # 200 tokens in 2 s
        event("eval", 2, time=60.0),
        event("log", 3, num_tokens=400, time=61.0),  # an evaluation in between
        event("log", 4, 2, num_tokens=500, time=500.0),  # another attempt
        event("log", 5, 2, num_tokens=800, time=501.0),
    ]
    assert History(events).throughput().points == [(2, 100.0), (5, 300.0)]


def test_alarms_keep_what_they_said():
    (alarm,) = History([event("log", 1), event("alarm", 2, 3, detector="grad_norm", message="Too high.")]).alarms()
    assert (alarm.step, alarm.detector, alarm.message, alarm.attempt) == (2, "grad_norm", "Too high.", 3)


def test_alarms_of_steps_that_were_replayed_are_listed_but_do_not_stand():
    history = History([event("alarm", 5, detector="loss"), event("begin", 2, 2), event("alarm", 3, 2, detector="loss")])
    assert [alarm.step for alarm in history.alarms()] == [5, 3]
    assert [alarm.step for alarm in history.alarms(standing=True)] == [3]


def test_time_is_that_of_all_attempts_without_the_pauses():
    events = [event("begin", 0, time=10.0), event("log", 1, time=15.0), event("begin", 1, 2, time=1000.0)]
    assert History([*events, event("log", 2, 2, time=1007.0)]).seconds == 12.0
