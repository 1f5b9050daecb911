"""`OverfitWatch` in a run that really overfits."""

from __future__ import annotations

import pytest
import torch
from watch_helpers import NAN_LOSS_ONLY, make_trainer, rows

from hf_recipes.callbacks.overfit import OverfitWatch
from hf_recipes.core.events import read_events


def overfitting_trainer(path, watch):
    """Random labels: what is learned from 4 rows is wrong for all others."""
    generator = torch.Generator().manual_seed(0)
    data = rows(4)
    for each in data:
        each["labels"] = torch.randint(0, 20, (6,), generator=generator)
    trainer = make_trainer(
        path, [watch], data, max_steps=60, learning_rate=5e-2, logging_steps=5, eval_strategy="steps", eval_steps=5
    )
    for each in trainer.eval_dataset:
        each["labels"] = torch.randint(0, 20, (6,), generator=generator)
    return trainer


@pytest.mark.parametrize("stop", [False, True])
def test_overfitting_is_told_once_and_stops_if_asked(stop, tmp_path):
    watch = OverfitWatch(patience=3, stop=stop)
    trainer = overfitting_trainer(tmp_path, watch)
    trainer.train()
    (alarm,) = [event for event in read_events(tmp_path) if event["kind"] == "alarm"]
    evaluations = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
    best_step = min(evaluations, key=evaluations.get)
    assert alarm["best_step"] == best_step
    assert alarm["gap"] == pytest.approx(evaluations[alarm["step"]] - evaluations[best_step])
    assert alarm["train_loss"] < alarm["train_loss_at_best"]
    assert "more data" in alarm["message"]
    assert trainer.state.global_step == (alarm["step"] if stop else 60)
    assert alarm["step"] < 60


def test_t6_a_nan_evaluation_is_told_and_kept_out(tmp_path):
    watch = OverfitWatch()
    # The Trainer filters NaN evaluations when any batch is finite, so the whole set is one batch.
    trainer = make_trainer(tmp_path, [watch], eval_strategy="steps", eval_steps=2)
    trainer.eval_dataset = rows(1, {0: NAN_LOSS_ONLY})
    trainer.train()
    verdicts = [event["verdict"] for event in read_events(tmp_path) if event["kind"] == "alarm"]
    assert verdicts == ["not_finite", "not_finite"]
    assert watch.detector.best_eval_loss is None


def test_a_metric_that_no_evaluation_has_is_told(tmp_path):
    make_trainer(tmp_path, [OverfitWatch(metric="eval_domain_loss")], eval_strategy="steps", eval_steps=2).train()
    (note,) = read_events(tmp_path)
    assert note["message"] == "Overfitting was not watched: no evaluation reported eval_domain_loss."


def test_several_eval_sets_are_watched_by_name(tmp_path):
    watch = OverfitWatch(metric="eval_domain_loss")
    trainer = make_trainer(tmp_path, [watch], eval_strategy="steps", eval_steps=2)
    trainer.eval_dataset = {"general": rows(4, seed=3), "domain": rows(4, seed=4)}
    trainer.train()
    assert watch.detector.last_eval_step == 4
    assert watch.detector.best_eval_loss is not None
