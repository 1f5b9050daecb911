from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import START, event

from hf_recipes.report.headline import headline
from hf_recipes.report.history import History
from hf_recipes.report.read_run import RunRecord
from hf_recipes.report.verdict import verdict

STEPS = [event("begin", 0, max_steps=40), *(event("log", step, loss=1.0) for step in range(1, 11))]
NOW = START + 2.0 * 10 + 1
ALARM = event("alarm", 5, detector="loss", message="Step 5: up.")


def stands(events: list[dict], status: dict | None = None, now: float = NOW):
    return verdict(RunRecord(Path("run"), status=status or {}, history=History(events)), now)


@pytest.mark.parametrize(
    ("code", "alarms", "css", "word"),
    [
        (0, [], "ok", "Healthy"),
        (0, [ALARM], "warn", "Finished with 1 alarm"),
        (0, [ALARM, ALARM], "warn", "Finished with 2 alarms"),
        (1, [ALARM], "bad", "Stopped"),
        (2, [], "bad", "Refused"),
        (75, [ALARM], "warn", "Stopped on request"),
        (130, [], "bad", "Interrupted"),
        (139, [], "bad", "Ended badly"),
        ("odd", [], "bad", "Ended badly"),
    ],
)
def test_a_run_that_has_ended(code, alarms, css, word):
    found = stands([*STEPS, *alarms], {"code": code, "sentence": "why it ended"})
    assert (found.css, found.word, found.running) == (css, word, False)
    assert "why it ended" in found.sentence


def test_a_run_whose_evaluation_missed_its_gate_is_not_called_healthy():
    def stands_with(*gate):
        record = RunRecord(Path("run"), status={"code": 0, "sentence": "done"}, evaluation={"gate": list(gate)})
        return verdict(
            RunRecord(record.path, status=record.status, evaluation=record.evaluation, history=History(STEPS))
        )

    missed = {"holds": False, "sentence": "forgetting of tuned is 0.1168, wanted < 0.1"}
    met = {"holds": True, "sentence": "exact of tuned is 0.9, wanted > 0.5"}
    assert stands_with(met).word == "Healthy"
    found = stands_with(met, missed)
    assert (found.css, found.word) == ("warn", "Below its gate")
    assert found.sentence == "done; forgetting of tuned is 0.1168, wanted < 0.1"
    assert stands_with("damaged", {"holds": "?"}).word == "Healthy"


def test_a_run_that_goes_on():
    found = stands(STEPS)
    assert (found.css, found.word, found.running) == ("open", "Running", True)
    assert found.sentence.startswith("at step 10 of 40, as of 20")
    warned = stands([*STEPS, ALARM])
    assert warned.css == "warn"
    assert warned.sentence.endswith(", 1 alarm")


def test_a_run_that_fell_silent():
    found = stands(STEPS, now=NOW + 3600)
    assert (found.css, found.word) == ("bad", "Silent at step 10 of 40")
    assert "60 min before this was written" in found.sentence
    # One that has been silent as long before, in an evaluation, is given the time.
    slow = [*STEPS, event("eval", 10, time=NOW + 1800), event("log", 11, time=NOW + 1801)]
    assert stands(slow, now=NOW + 1800 + 3600).word == "Running"


def test_a_resumed_run_is_not_judged_by_how_the_one_before_it_ended():
    status = {"code": 1, "sentence": "stopped", "time": NOW}
    resumed = [*STEPS, event("begin", 8, attempt=2, time=NOW + 10, max_steps=40)]
    assert stands(resumed, status, now=NOW + 11).word == "Running"
    assert stands(resumed, {**status, "time": NOW + 20}, now=NOW + 21).word == "Stopped"


def test_without_a_status_the_trainers_end_is_believed():
    assert stands([*STEPS, event("end", 40, stopped_early=False)]).word == "Healthy"
    early = stands([*STEPS, event("end", 10, stopped_early=True)])
    assert (early.css, early.word) == ("bad", "Ended early")
    again = [*STEPS, event("end", 10, stopped_early=True), event("begin", 10, attempt=2, time=NOW)]
    assert stands(again).word == "Running"


def test_nothing_yet():
    assert stands([]).word == "Not started"
    assert stands([{"kind": "log", "step": 3}]).word == "Not ended"


def test_the_headline_has_the_last_the_best_and_the_time_left():
    events = [*STEPS, event("eval", 4, eval_loss=0.5), event("eval", 8, eval_loss=0.75), event("log", 10, loss="nan")]
    record = RunRecord(Path("run"), history=History(events))
    figures = {figure.name: (figure.shown, figure.detail) for figure in headline(record, NOW)}
    assert figures["steps"] == ("10", "of 40")
    assert figures["training loss"] == ("nan", "last")
    assert figures["eval loss"] == ("0.75", "last")
    assert figures["best eval loss"] == ("0.5", "step 4")
    assert figures["time left"] == ("60 s", "about")  # 30 steps at 2 s
    assert "time left" not in {figure.name for figure in headline(record, NOW + 3600)}  # silent by then


def test_a_rank_that_is_gone_has_stopped_the_run():
    gone = event("alarm", 10, detector="ranks", verdict="gone", message="Step 10: rank 1 is gone.")
    told = verdict(RunRecord(Path("run"), history=History([*STEPS, gone])), NOW)
    assert (told.word, told.sentence) == ("Stopped", "Step 10: rank 1 is gone.")
