"""`ReportCallback` in a plain Trainer."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
import torch
from report_runs import event, write_events
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.report import live
from hf_recipes.report.live import ReportCallback


class Line(nn.Module):
    """y = wx."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Linear(1, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": ((self.weight(x) - labels) ** 2).mean()}


def train(directory: Path, callbacks: list[TrainerCallback], resume: str | None = None, **arguments) -> Trainer:
    rows = [{"x": torch.tensor([float(number)]), "labels": torch.tensor([2.0 * number])} for number in range(32)]
    defaults = {"max_steps": 6, "save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    settings = {**defaults, "logging_steps": 1, "output_dir": str(directory), "per_device_train_batch_size": 2}
    trainer = Trainer(
        model=Line(), args=TrainingArguments(**settings | arguments), train_dataset=rows, eval_dataset=rows[:4]
    )
    for callback in callbacks:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def embedded(page: Path) -> dict:
    text = page.read_text("utf-8")
    return json.loads(text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])


def titles(page: Path) -> list[str]:
    return [chart["title"] for chart in embedded(page)["charts"] if not chart["folded"]]


@pytest.fixture
def pages(monkeypatch):
    """The verdict of every page that is written, in order."""
    written = []
    real = live.write_page

    def write(record):
        path = real(record)
        written.append(path.read_text("utf-8").partition('<p class="verdict')[2].partition("</p>")[0])
        return path

    monkeypatch.setattr(live, "write_page", write)
    return written


@pytest.mark.parametrize("with_log", [True, False])
def test_the_page_is_there_from_the_begin_and_complete_at_the_end(tmp_path, pages, with_log):
    callbacks = [EventLogCallback()] if with_log else []
    trainer = train(tmp_path, [*callbacks, ReportCallback(share=1e9)], eval_strategy="steps", eval_steps=3)
    assert ("Not started" in pages[0]) != with_log or "at step 0 of 6" in pages[0]
    assert any("at step 3 of 6" in verdict for verdict in pages)
    assert "Healthy" in pages[-1]
    page = tmp_path / "report.html"
    assert titles(page) == ["Loss", "Learning rate", "Gradient norm before clipping"]
    train_curve, eval_curve = embedded(page)["charts"][0]["curves"]
    assert (train_curve["name"], eval_curve["name"]) == ("train", "eval")
    summary = embedded(page)["charts"][0]["summary"]
    assert "at step 1 to" in summary
    assert trainer.state.global_step == 6
    assert (tmp_path / "events.jsonl").is_file() is with_log  # it writes no log of its own
    assert not list(tmp_path.glob(".*"))


def test_it_takes_no_more_than_its_share_of_the_time(tmp_path, monkeypatch):
    clock = [0.0]
    written = []
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])

    def write(record):
        written.append(clock[0])
        clock[0] += 0.5  # what a writing costs

    class Steps(TrainerCallback):
        def on_step_end(self, *args, **kwargs):
            clock[0] += 10.0

    monkeypatch.setattr(live, "write_page", write)
    train(tmp_path, [Steps(), ReportCallback()], max_steps=20)
    # at the begin; then not before 50 s (0.5 s are one hundredth of it) after each; and at the end
    assert written[0] == 0.0
    assert written[-1] == pytest.approx(200.5, abs=3)
    gaps = [after - before for before, after in itertools.pairwise(written)]
    assert all(gap >= 50.0 for gap in gaps[:-1])
    assert 4 <= len(written) <= 6


def test_a_page_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path, monkeypatch, caplog):
    def full(record):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(live, "write_page", full)
    trainer = train(tmp_path, [ReportCallback(share=1e9)])
    assert trainer.state.global_step == 6
    told = [message for message in caplog.messages if "report.html could not be written" in message]
    assert len(told) == 1
    assert "No space left" in told[0]


def test_only_the_first_rank_writes(tmp_path):
    callback = ReportCallback(share=1e9)
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    state = TrainerState(max_steps=3, is_world_process_zero=False)
    for name in ("on_train_begin", "on_step_begin", "on_log", "on_evaluate", "on_save", "on_train_end"):
        getattr(callback, name)(arguments, state, TrainerControl())
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_shows_what_came_before(tmp_path):
    train(tmp_path, [ReportCallback()], max_steps=4, save_strategy="steps", save_steps=2)
    train(tmp_path, [ReportCallback()], str(tmp_path / "checkpoint-2"), max_steps=4)
    curve = embedded(tmp_path / "report.html")["charts"][0]["curves"][0]
    steps = embedded(tmp_path / "report.html")["arrays"][curve["steps"]]
    assert steps == {"from": 1, "by": 1, "count": 4}


def test_training_again_starts_afresh(tmp_path):
    callback = ReportCallback()
    trainer = train(tmp_path, [callback])
    trainer.train()
    curve = embedded(tmp_path / "report.html")["charts"][0]["curves"][0]
    assert embedded(tmp_path / "report.html")["arrays"][curve["steps"]]["count"] == 6


def test_alarms_of_watchers_come_onto_the_page(tmp_path):
    class Alarms(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 3:
                write_events(tmp_path, [event("alarm", 3, detector="loss", message="Step 3: up.")], mode="a")

    train(tmp_path, [Alarms(), ReportCallback()])
    assert [alarm["message"] for alarm in embedded(tmp_path / "report.html")["alarms"]] == ["Step 3: up."]


def test_evaluating_without_training_leaves_no_page_and_breaks_nothing(tmp_path):
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to="none")
    callback, state = ReportCallback(), TrainerState(is_world_process_zero=True)
    callback.on_log(arguments, state, TrainerControl(), logs={"eval_loss": 1.0})
    callback.on_evaluate(arguments, state, TrainerControl(), metrics={"eval_loss": 1.0})
    assert not (tmp_path / "report.html").exists()
