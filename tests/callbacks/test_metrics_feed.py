"""A watcher's numbers reach every callback and the history, once, under their own names."""

from __future__ import annotations

import pytest
from transformers import TrainerCallback
from watch_helpers import make_trainer

from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.callbacks.grad_norm import GradNormWatch
from hf_recipes.callbacks.metrics_feed import MetricGiver, MetricsFeed, feed_metrics
from hf_recipes.core.events import read_events


class Counts(MetricGiver, TrainerCallback):
    """Gives the number of steps that ended since the last log, and a name that the Trainer has already."""

    def __init__(self):
        self.ended = 0

    def on_step_begin(self, args, state, control, **kwargs):
        self.ended = state.global_step + 1

    def metrics(self):
        return {"ended": float(self.ended), "learning_rate": 99.0}


class Listener(TrainerCallback):
    """What a tracker would be given."""

    def __init__(self):
        self.heard = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.heard.append(dict(logs))


def train(directory, callbacks, feed, **arguments):
    trainer = make_trainer(directory, callbacks, eval_strategy="steps", eval_steps=2, **arguments)
    if feed:
        feed_metrics(trainer)
    trainer.train()
    return trainer


def ended(logs):
    return [log["ended"] for log in logs if "ended" in log]


def test_with_a_feed_callbacks_in_front_hear_it_too(tmp_path):
    tracker = Listener()
    trainer = train(tmp_path, [tracker, EventLogCallback(), Counts()], feed=True)
    assert ended(tracker.heard) == [1, 2, 3, 4]
    assert ended(trainer.state.log_history) == [1, 2, 3, 4]
    assert ended(event for event in read_events(tmp_path) if event["kind"] == "log") == [1, 2, 3, 4]


def test_without_a_feed_those_behind_hear_it(tmp_path):
    before, behind = Listener(), Listener()

    class Behind(Listener):
        pass

    behind = Behind()
    trainer = train(tmp_path, [before, Counts(), behind], feed=False)
    assert ended(before.heard) == []
    assert ended(behind.heard) == [1, 2, 3, 4]
    assert ended(trainer.state.log_history) == [1, 2, 3, 4]


@pytest.mark.parametrize("feed", [True, False])
def test_evaluations_and_the_summary_stay_as_they_are(feed, tmp_path):
    trainer = train(tmp_path, [Counts()], feed)
    others = [log for log in trainer.state.log_history if "loss" not in log]
    assert len(others) == 3  # two evaluations and the end
    assert ended(others) == []


@pytest.mark.parametrize("feed", [True, False])
def test_the_trainers_own_names_are_not_taken(feed, tmp_path):
    trainer = train(tmp_path, [Counts()], feed)
    rates = [log["learning_rate"] for log in trainer.state.log_history if "loss" in log]
    assert max(rates) <= 1e-2


def test_feeding_twice_is_feeding_once(tmp_path):
    trainer = make_trainer(tmp_path, [Counts()])
    feed_metrics(trainer)
    feed_metrics(trainer)
    assert [isinstance(each, MetricsFeed) for each in trainer.callback_handler.callbacks].count(True) == 1
    assert any(isinstance(each, MetricsFeed) for each in trainer.callback_handler.callbacks[:2])


def test_a_feed_stays_in_front_when_a_resume_replaces_callbacks(tmp_path):
    arguments = {"save_strategy": "steps", "save_steps": 2, "restore_callback_states_from_checkpoint": True}
    train(tmp_path, [GradNormWatch(), Counts()], True, **arguments)
    tracker = Listener()
    trainer = make_trainer(tmp_path, [tracker, GradNormWatch(), Counts()], **arguments)
    feed_metrics(trainer)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert any(isinstance(each, MetricsFeed) for each in trainer.callback_handler.callbacks[:2])
    assert ended(tracker.heard) == [3, 4]
