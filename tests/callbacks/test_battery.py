"""What must hold for every callback of the room, alone and all together, in anybody's plain Trainer."""

from __future__ import annotations

import json

import pytest
import torch
from sampled import sampled
from watch_helpers import PoisonModel, logged, make_trainer, weights

from hf_recipes.callbacks.build import build_watchers
from hf_recipes.callbacks.event_log import EventLogCallback
from hf_recipes.callbacks.grad_norm import GradNormWatch
from hf_recipes.callbacks.loss_watch import LossWatch
from hf_recipes.callbacks.memory_watch import MemoryWatch
from hf_recipes.callbacks.non_finite import NonFiniteGuard
from hf_recipes.callbacks.overfit import OverfitWatch
from hf_recipes.callbacks.rank_watch import RankWatch
from hf_recipes.callbacks.schedule import ScheduleWatch
from hf_recipes.callbacks.throughput import ThroughputWatch
from hf_recipes.callbacks.trainable import TrainableGuard
from hf_recipes.callbacks.watching import Resumable
from hf_recipes.report.live import ReportCallback

EACH = {
    "grad_norm": lambda: [GradNormWatch()],
    "non_finite": lambda: [NonFiniteGuard()],
    "trainable": lambda: [TrainableGuard()],
    "overfit": lambda: [OverfitWatch()],
    "loss": lambda: [LossWatch()],
    "schedule": lambda: [ScheduleWatch()],
    "throughput": lambda: [ThroughputWatch()],
    "memory": lambda: [MemoryWatch()],
    "ranks": lambda: [RankWatch()],
    "report": lambda: [ReportCallback()],
    "event_log": lambda: [EventLogCallback()],
}
TOGETHER = {"all": lambda: [EventLogCallback(), *build_watchers(), ReportCallback()]}
ALL = {**EACH, **TOGETHER}


@pytest.mark.parametrize("name", ALL)
def test_each_callback_trains_alone_and_together(name, tmp_path):
    trainer = make_trainer(tmp_path, ALL[name](), eval_strategy="steps", eval_steps=2)
    trainer.train()
    assert trainer.state.global_step == 4
    assert trainer.args.max_grad_norm == 1.0  # given back
    assert not trainer.model._forward_hooks
    trainer.train()  # a second run with the same callbacks starts afresh
    assert trainer.state.global_step == 4


@pytest.mark.parametrize("max_grad_norm", sampled([0.0, 0.05, 1.0], keep=[0.05]))
@pytest.mark.parametrize(
    "name", sampled(["grad_norm", "non_finite", "loss", "throughput", "all"], keep=["non_finite", "all"])
)
def test_watching_changes_no_number(name, max_grad_norm, tmp_path):
    runs = []
    for callbacks in ([], ALL[name]()):
        trainer = make_trainer(tmp_path, callbacks, gradient_accumulation_steps=3, max_grad_norm=max_grad_norm)
        trainer.train()
        runs.append((logged(trainer, "loss"), logged(trainer, "grad_norm"), weights(trainer.model)))
    (losses, norms, weights_without), (watched_losses, watched_norms, weights_with) = runs
    assert len(losses) == 4
    assert watched_losses == pytest.approx(losses, abs=1e-7)
    assert watched_norms == pytest.approx(norms, abs=1e-7)  # the log still tells the norm before clipping
    torch.testing.assert_close(weights_with, weights_without, rtol=0, atol=1e-7)


def test_a_small_clip_does_change_numbers(tmp_path):
    """Without this the test above would also pass if nobody clipped."""
    ends = []
    for max_grad_norm in (1e-9, 1.0):  # SGD: AdamW would undo the scale
        trainer = make_trainer(tmp_path, [GradNormWatch()], max_grad_norm=max_grad_norm, optim="sgd")
        before = weights(trainer.model)
        trainer.train()
        ends.append((weights(trainer.model) - before).norm().item())
    # 4 steps of lr 1e-2 at most, times a gradient of norm 1e-9 at most.
    assert ends[0] <= 4e-11 * 1.01
    assert ends[1] > 1e-4


@pytest.mark.parametrize("name", ["grad_norm", "non_finite", "overfit", "loss", "schedule", "ranks"])
def test_state_is_json_and_makes_an_equal_callback(name, tmp_path):
    (callback,) = EACH[name]()
    make_trainer(tmp_path, [callback], eval_strategy="steps", eval_steps=1).train()
    state = json.loads(json.dumps(callback.state(), allow_nan=False))
    again = type(callback).from_state(state)
    assert again.state() == callback.state()


@pytest.mark.parametrize("restored_by_trainer", [False, True])
def test_resume_takes_up_the_detectors(restored_by_trainer, tmp_path):
    arguments = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "restore_callback_states_from_checkpoint": restored_by_trainer,
    }

    def detector_states(trainer):
        callbacks = trainer.callback_handler.callbacks
        return {type(each).__name__: each.detector_state for each in callbacks if isinstance(each, Resumable)}

    whole = make_trainer(tmp_path / "whole", TOGETHER["all"](), **arguments)
    whole.train()
    resumed = make_trainer(tmp_path / "resumed", TOGETHER["all"](), **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert detector_states(resumed) == detector_states(whole)
    norms = detector_states(resumed)["GradNormWatch"]["values"]
    assert norms == pytest.approx(logged(whole, "grad_norm"))  # all four steps, two of them from the checkpoint
    assert logged(resumed, "loss")[-1] == logged(whole, "loss")[-1]


def test_a_checkpoint_that_knows_no_watcher_is_resumed_and_the_next_one_saved(tmp_path):
    make_trainer(tmp_path, [], save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=1).train()
    watched = make_trainer(
        tmp_path, TOGETHER["all"](), save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=1
    )
    watched.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())["stateful_callbacks"]["LossWatch"]


def test_thresholds_of_a_resumed_run_are_its_own(tmp_path):
    first = make_trainer(tmp_path, [GradNormWatch(sigma=8)], save_strategy="steps", save_steps=2)
    first.train()
    watch = GradNormWatch(sigma=5)
    make_trainer(tmp_path, [watch]).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert watch.detector.sigma == 5
    assert len(watch.detector.values) == 4


def test_a_run_broken_off_does_not_leave_the_next_without_clipping(tmp_path):
    class Breaks(PoisonModel):
        def forward(self, input_ids, labels):
            raise RuntimeError("broken")

    broken = make_trainer(tmp_path, [GradNormWatch()], model=Breaks(), max_grad_norm=0.05)
    with pytest.raises(RuntimeError, match="broken"):
        broken.train()
    plain = make_trainer(tmp_path, [], max_grad_norm=0.05)
    plain.train()
    next_run = make_trainer(tmp_path, [GradNormWatch()])
    next_run.args = broken.args  # the arguments that the broken run left behind
    next_run.train()
    torch.testing.assert_close(weights(next_run.model), weights(plain.model), rtol=0, atol=1e-7)
    assert broken.args.max_grad_norm == 0.05
