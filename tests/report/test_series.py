from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.report.series import Series, alarms, as_number, series, throughput, timeline


def event(kind: str, step: int, attempt: int = 1, **values) -> dict:
    return {"kind": kind, "step": step, "attempt": attempt, **values}


def steps_and_losses(events: list[dict]) -> list[tuple[int, float]]:
    return series(timeline(events), "log", "loss").points


def test_a_resumed_run_replaces_what_it_replays():
    first = [event("begin", 0), *(event("log", step, loss=1.0) for step in range(1, 8))]
    second = [event("begin", 4, 2), *(event("log", step, 2, loss=2.0) for step in range(5, 7))]
    # resumed at 4: steps 1-4 of the first stand, 5 and 6 are replayed, 7 was never reached again and is gone
    assert steps_and_losses(first + second) == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (5, 2.0), (6, 2.0)]


def test_a_resume_from_the_start_leaves_nothing_of_the_first_attempt():
    assert steps_and_losses([event("log", 3, loss=1.0), event("begin", 0, 2), event("log", 1, 2, loss=2.0)]) == [
        (1, 2.0)
    ]


def test_an_attempt_without_a_begin_event_starts_before_its_first():
    events = [*(event("log", step, loss=1.0) for step in (2, 4, 6)), event("log", 4, 2, loss=2.0)]
    assert steps_and_losses(events) == [(2, 1.0), (4, 2.0)]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20), st.floats()), max_size=60))
def test_a_series_has_ascending_steps_once_and_only_finite_values(rows):
    events = [event("log", step, attempt, loss=value) for attempt, step, value in rows]
    curve = series(timeline(events), "log", "loss")
    steps = [step for step, _ in curve.points] + [step for step, _ in curve.bad]
    assert len(set(steps)) == len(steps)
    assert curve.points == sorted(curve.points)
    assert all(math.isfinite(value) for _, value in curve.points)
    last = max((attempt for attempt, _, _ in rows), default=0)
    newest = {step: value for attempt, step, value in rows if attempt == last}
    kept = {**dict(curve.points), **{step: float(value) for step, value in curve.bad}}
    for step, value in newest.items():
        assert kept[step] == value or math.isnan(value)


def test_non_finite_strings_break_the_line():
    events = [event("log", step, loss=loss) for step, loss in enumerate([1.0, 0.5, "nan", 0.4, "inf", "-inf"], start=1)]
    curve = series(events, "log", "loss")
    assert curve.segments() == [[(1, 1.0), (2, 0.5)], [(4, 0.4)]]
    assert curve.bad == [(3, "nan"), (5, "inf"), (6, "-inf")]


def test_what_is_no_number_is_passed_over():
    assert [as_number(value) for value in (True, None, [], {}, "", "abc", 10**400)] == [None] * 7
    assert as_number("2.5") == 2.5
    assert not series([event("log", 1, loss=None), event("eval", 1, loss=1.0)], "log", "loss")


def test_events_of_a_strange_shape_do_no_harm():
    assert timeline([{}, {"step": "3"}, {"step": True, "kind": "log"}, {"kind": "log", "step": 1, "attempt": "x"}]) == [
        {"kind": "log", "step": 1, "attempt": "x"}
    ]


def test_throughput_as_logged_wins_over_the_derived():
    events = [event("log", 1, tokens_per_second=5.0, num_tokens=1, time=0.0), event("log", 2, num_tokens=99, time=1.0)]
    assert throughput(events).points == [(1, 5.0)]


def test_derived_throughput_leaves_out_evaluations_and_resumes():
    events = [
        event("log", 1, num_tokens=100, time=0.0),
        event("log", 2, num_tokens=300, time=2.0),  # 200 tokens in 2 s
        event("eval", 2, time=60.0),
        event("log", 3, num_tokens=400, time=61.0),  # an evaluation in between
        event("log", 4, 2, num_tokens=500, time=500.0),  # another attempt
        event("log", 5, 2, num_tokens=800, time=501.0),
    ]
    assert throughput(events).points == [(2, 100.0), (5, 300.0)]


def test_alarms_keep_what_they_said():
    (alarm,) = alarms([event("log", 1), event("alarm", 2, 3, detector="grad_norm", message="Too high.")])
    assert (alarm.step, alarm.detector, alarm.message, alarm.attempt) == (2, "grad_norm", "Too high.", 3)


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=40, unique_by=lambda item: item[0]))
def test_segments_hold_every_finite_point_in_order(rows):
    points = sorted((step, float(step)) for step, good in rows if good)
    curve = Series("x", points, sorted((step, "nan") for step, good in rows if not good))
    assert [point for segment in curve.segments() for point in segment] == points
    for segment in curve.segments():
        assert not any(segment[0][0] < step < segment[-1][0] for step, _ in curve.bad)
