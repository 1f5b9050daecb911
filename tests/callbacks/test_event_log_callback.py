"""The Trainer's reports as events."""

from __future__ import annotations

from watch_helpers import logged, make_trainer

from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.core.events import read_events


def test_a_run_is_written_once_and_in_order(tmp_path, capsys):
    arguments = {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 4}
    trainer = make_trainer(tmp_path, [EventLogCallback()], gradient_accumulation_steps=2, **arguments)
    trainer.train()
    events = read_events(tmp_path)
    assert [(event["kind"], event["step"]) for event in events] == [
        ("begin", 0),
        ("log", 1),
        ("log", 2),
        ("eval", 2),
        ("log", 3),
        ("log", 4),
        ("eval", 4),
        ("save", 4),
        ("end", 4),
    ]
    begin, end = events[0], events[-1]
    assert (begin["max_steps"], begin["world_size"], begin["global_batch_size"]) == (4, 1, 2)
    assert [event["loss"] for event in events if event["kind"] == "log"] == logged(trainer, "loss")
    assert [event["grad_norm"] for event in events if event["kind"] == "log"] == logged(trainer, "grad_norm")
    assert [event["eval_loss"] for event in events if event["kind"] == "eval"] == logged(trainer, "eval_loss")
    assert events[-2]["checkpoint"] == "checkpoint-4"
    assert end["train_loss"] == logged(trainer, "train_loss")[0]
    assert end["stopped_early"] is False
    assert all(event["rank"] == 0 and event["schema"] == 1 for event in events)


def test_it_prints_nothing_more(tmp_path, capsys):
    printed = []
    for callbacks in ([], [EventLogCallback()]):
        make_trainer(tmp_path / str(len(callbacks)), callbacks).train()
        printed.append(len(capsys.readouterr().out.splitlines()))
    assert printed[0] == printed[1]


def test_a_resumed_run_says_from_where(tmp_path):
    make_trainer(tmp_path, [], max_steps=2, save_strategy="steps", save_steps=2).train()
    trainer = make_trainer(tmp_path, [EventLogCallback()])
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert read_events(tmp_path)[0]["resumed_from"] == 2
