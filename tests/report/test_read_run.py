from __future__ import annotations

import json
import os

import pytest
from report_runs import event, write_events

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.report.read_run import RunReader, Saved, read_run


def test_damaged_files_are_named_and_the_rest_is_read(tmp_path):
    (tmp_path / "run.json").write_text("{half")
    (tmp_path / "data.json").write_text("[1]")
    (tmp_path / "status.json").write_text('{"code": 1, "sentence": "stopped at step 7: the loss is nan"}')
    record = read_run(RunDirectory(tmp_path))
    assert [problem.partition(" ")[0] for problem in record.problems] == ["run.json", "data.json"]
    assert "cannot be read" in record.problems[0]
    assert "holds no JSON object" in record.problems[1]
    assert record.status["code"] == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in this file system")
def test_pipes_in_place_of_files_are_named_and_not_waited_for(tmp_path):
    for name in ("run.json", "events.jsonl"):
        os.mkfifo(tmp_path / name)
    record = read_run(RunDirectory(tmp_path))
    assert [problem.partition(" ")[0] for problem in record.problems] == ["run.json", "events.jsonl"]
    assert all("not a regular file" in problem for problem in record.problems)


def test_lines_that_hold_no_event_are_counted_and_named(tmp_path):
    good = json.dumps(event("log", 1, loss=1.0))
    lines = [good, "half {", "", '{"kind": "log"}', "[1]", b"\xff\xfe".decode("latin-1"), json.dumps(event("log", 2))]
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n", encoding="latin-1")
    record = read_run(RunDirectory(tmp_path))
    assert record.problems == ["events.jsonl: 4 lines hold no event and are left out (line 2, 4, 5, 6)"]
    assert record.history.last_step == 2


def test_a_line_cut_short_is_told_and_read_when_it_is_whole(tmp_path):
    whole = json.dumps(event("log", 2, loss=2.0))
    (tmp_path / "events.jsonl").write_text(json.dumps(event("log", 1, loss=1.0)) + "\n" + whole[:20])
    reader = RunReader(RunDirectory(tmp_path))
    record = reader.read()
    assert record.problems == ["events.jsonl: the last line is cut short and is left out"]
    assert record.history.last_step == 1
    with open(tmp_path / "events.jsonl", "a") as file:
        file.write(whole[20:] + "\n")
    record = reader.read()
    assert record.problems == []
    assert record.history.series("log", "loss").points == [(1, 1.0), (2, 2.0)]


def test_reading_on_equals_reading_anew(tmp_path):
    reader = RunReader(RunDirectory(tmp_path))
    for step in range(1, 6):
        write_events(tmp_path, [event("log", step, loss=float(step)), event("alarm", step, detector="x")], mode="a")
        record = reader.read()
        anew = read_run(RunDirectory(tmp_path))
        assert record.history.series("log", "loss").points == anew.history.series("log", "loss").points
        assert len(record.history.alarms()) == len(anew.history.alarms()) == step


def test_a_replaced_log_is_read_from_its_start(tmp_path):
    write_events(tmp_path, [event("log", step, loss=1.0) for step in range(20)])
    reader = RunReader(RunDirectory(tmp_path))
    reader.read()
    write_events(tmp_path, [event("log", 3, loss=9.0)])
    assert reader.read().history.series("log", "loss").points == [(3, 9.0)]


def test_events_of_all_ranks_are_read(tmp_path):
    write_events(tmp_path, [event("log", 1, loss=1.0)])
    alarm = event("alarm", 1, detector="ranks", message="Rank 3 is late.", rank=3)
    (tmp_path / "events.rank3.jsonl").write_text(json.dumps(alarm) + "\n")
    assert [alarm.message for alarm in read_run(RunDirectory(tmp_path)).history.alarms()] == ["Rank 3 is late."]


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
