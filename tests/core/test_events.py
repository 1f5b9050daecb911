from __future__ import annotations

import json
import math
import subprocess
import sys

import pytest

from hf_recipes.core.events import EventLog, event_log, read_events


def strict(line: str):
    """Parse one line as a browser does: bare NaN and Infinity are errors."""

    def refuse(name: str):
        raise ValueError(name)

    return json.loads(line, parse_constant=refuse)


def test_every_line_carries_the_envelope_and_the_values(tmp_path):
    EventLog(tmp_path, 0).write("log", 3, loss=0.5, lr=1e-4)
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    event = strict(line)
    assert {key: event[key] for key in ("schema", "attempt", "rank", "kind", "step", "loss", "lr")} == {
        "schema": 1,
        "attempt": 1,
        "rank": 0,
        "kind": "log",
        "step": 3,
        "loss": 0.5,
        "lr": 1e-4,
    }
    assert event["time"] > 0


def test_non_finite_values_are_text_that_browsers_accept(tmp_path):
    EventLog(tmp_path, 0).write("alarm", 1, loss=math.nan, norms=[math.inf, 1.0])
    event = strict((tmp_path / "events.jsonl").read_text())
    assert (event["loss"], event["norms"]) == ("nan", ["inf", 1.0])


def test_a_resume_counts_as_the_next_attempt(tmp_path):
    EventLog(tmp_path, 0).write("begin", 0)
    EventLog(tmp_path, 0).write("begin", 5)
    assert [event["attempt"] for event in read_events(tmp_path)] == [1, 2]


def test_ranks_write_apart_and_are_read_together_by_time(tmp_path):
    first, second = EventLog(tmp_path, 0), EventLog(tmp_path, 1)
    second.write("note", 1, text="a")
    first.write("note", 1, text="b")
    second.write("note", 2, text="c")
    assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "events.rank1.jsonl"}
    assert [(event["rank"], event["text"]) for event in read_events(tmp_path)] == [(1, "a"), (0, "b"), (1, "c")]


def test_a_last_line_cut_by_a_kill_is_passed_over(tmp_path):
    log = EventLog(tmp_path, 0)
    log.write("log", 1)
    log.write("log", 2)
    with open(log.path, "r+b") as file:
        file.truncate(log.path.stat().st_size - 5)
    assert [event["step"] for event in read_events(tmp_path)] == [1]


def test_a_killed_process_keeps_what_it_wrote(tmp_path):
    code = (
        "import os, sys, pathlib; from hf_recipes.core.events import EventLog;"
        "EventLog(pathlib.Path(sys.argv[1]), 0).write('log', 7); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert [event["step"] for event in read_events(tmp_path)] == [7]


def test_an_unknown_kind_is_our_own_mistake(tmp_path):
    with pytest.raises(AssertionError):
        EventLog(tmp_path, 0).write("logs", 1)


def test_one_process_has_one_log_a_directory_and_takes_its_rank_from_the_launcher(tmp_path, monkeypatch):
    assert event_log(tmp_path) is event_log(str(tmp_path))
    monkeypatch.setenv("RANK", "2")
    assert event_log(tmp_path).path.name == "events.rank2.jsonl"


def test_no_events_where_there_is_no_log(tmp_path):
    assert read_events(tmp_path) == []


def test_the_next_attempt_follows_the_last_whole_line_of_a_long_log(tmp_path):
    line = json.dumps({"schema": 1, "attempt": 3, "kind": "log", "step": 1, "values": "x" * 200})
    (tmp_path / "events.jsonl").write_text("\n".join([line] * 1000) + "\n" + line[:50], encoding="utf-8")
    assert EventLog(tmp_path, 0).attempt == 4
    (tmp_path / "events.jsonl").write_text(line + "\n" + "not JSON " * 20_000, encoding="utf-8")
    assert EventLog(tmp_path, 0).attempt == 4
    (tmp_path / "events.jsonl").write_text("junk\n", encoding="utf-8")
    assert EventLog(tmp_path, 0).attempt == 1


def test_signs_that_some_take_for_the_end_of_a_line_stand_in_texts(tmp_path):
    EventLog(tmp_path, 0).write("note", 1, message="one\u2028two\u2029three\x85four\x0bfive")
    (event,) = read_events(tmp_path)
    assert event["message"] == "one\u2028two\u2029three\x85four\x0bfive"


def test_half_a_line_left_by_a_kill_takes_no_other_with_it(tmp_path):
    EventLog(tmp_path, 0).write("note", 1)
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write('{"schema": 1, "attempt": 1, "ki')
    EventLog(tmp_path, 0).write("begin", 1)
    assert [(event["kind"], event["attempt"]) for event in read_events(tmp_path)] == [("note", 1), ("begin", 2)]


def test_an_event_after_a_disk_was_full_is_whole(tmp_path, monkeypatch):
    log = EventLog(tmp_path, 0)
    log.write("note", 1)
    real = open

    def full(*arguments, **settings):
        with real(tmp_path / "events.jsonl", "a") as file:
            file.write('{"half')
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(OSError, match="No space left"):
        log.write("note", 2)
    monkeypatch.setattr("builtins.open", real)
    log.write("note", 3)
    assert [event["step"] for event in read_events(tmp_path)] == [1, 3]
