"""The schedule of a real Trainer, before its first step and while it runs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from sampled import sampled
from transformers import TrainerCallback
from watch_helpers import LossScaled, PoisonModel, logged, make_trainer, weights

from hf_recipes.callbacks.schedule import ScheduleWatch, peak_share
from hf_recipes.core.events import read_events

GUIDES = {
    "warmup_steps": 0.03,
    "lr_scheduler_type": "cosine_with_min_lr",
    "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
}


def events(path, kind):
    return [event for event in read_events(path) if event["kind"] == kind]


def run(path, watch=None, others=(), **arguments):
    trainer = make_trainer(path, [watch or ScheduleWatch(), *others], **{"max_steps": 40, **arguments})
    trainer.train()
    return trainer


def test_the_guides_schedule_is_silent_until_the_end(tmp_path):
    trainer = run(tmp_path, **GUIDES)
    assert events(tmp_path, "alarm") == []
    (end,) = events(tmp_path, "note")
    assert end["peak_learning_rate"] == pytest.approx(max(logged(trainer, "learning_rate")))
    assert (end["peak_step"], end["warm_up_share"]) == (3, 0.05)
    assert end["end"] == pytest.approx(0.1, abs=0.01)


SCHEDULES = {
    "linear": {},
    "constant": {},
    "constant_with_warmup": {"warmup_steps": 2},
    "cosine": {"warmup_steps": 2},
    "cosine_with_restarts": {"lr_scheduler_kwargs": {"num_cycles": 3}},
    "polynomial": {},
    "inverse_sqrt": {"warmup_steps": 2},
    "warmup_stable_decay": {"warmup_steps": 2, "lr_scheduler_kwargs": {"num_decay_steps": 8}},
    "reduce_lr_on_plateau": {"eval_strategy": "steps", "eval_steps": 5},
}


@pytest.mark.parametrize(
    "name", sampled(SCHEDULES, keep=["linear", "cosine_with_restarts", "warmup_stable_decay", "reduce_lr_on_plateau"])
)
def test_no_schedule_of_transformers_is_an_alarm(name, tmp_path):
    run(tmp_path, lr_scheduler_type=name, **SCHEDULES[name])
    assert events(tmp_path, "alarm") == []


def test_what_is_unlike_the_guides_is_a_note(tmp_path):
    run(tmp_path, lr_scheduler_type="linear")
    note = events(tmp_path, "note")[0]
    assert note["step"] == 0
    assert "warm-up none" in note["message"] and "ends at 0 of its peak" in note["message"]
    run(tmp_path / "constant", lr_scheduler_type="constant", warmup_steps=0)
    assert "constant (guides: about 0.1)" in events(tmp_path / "constant", "note")[0]["message"]


def test_a_warm_up_longer_than_the_run_is_told_before_the_first_step(tmp_path):
    run(tmp_path, warmup_steps=100)
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["detector"], alarm["verdict"], alarm["step"]) == ("schedule", "peak_not_reached", 0)
    assert "0.03 (now 100)" in alarm["message"]


def test_a_rate_of_nothing_is_told(tmp_path):
    before = weights(PoisonModel())
    trainer = run(tmp_path, max_steps=1, warmup_steps=0.03)  # rounded up to the whole run
    assert torch.equal(weights(trainer.model), before)
    (alarm,) = events(tmp_path, "alarm")
    assert alarm["verdict"] == "zero"
    run(tmp_path / "no rate", learning_rate=0.0)
    assert [each["verdict"] for each in events(tmp_path / "no rate", "alarm")] == ["zero"]


class OwnLength:
    """Gives a Trainer a linear schedule of another length than the run."""

    def __init__(self, steps):
        self.steps = steps

    def optimizers(self, model):
        from transformers import get_linear_schedule_with_warmup

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        return optimizer, get_linear_schedule_with_warmup(optimizer, 1, self.steps)


@pytest.mark.parametrize(("steps", "verdict"), [(20, "ends_early"), (400, "cut_off")])
def test_a_schedule_of_another_length_is_told(steps, verdict, tmp_path):
    model = PoisonModel()
    trainer = make_trainer(tmp_path, [ScheduleWatch()], model=model, max_steps=40)
    trainer.optimizer, trainer.lr_scheduler = OwnLength(steps).optimizers(model)
    trainer.train()
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["verdict"], alarm["length"], alarm["step"]) == (verdict, steps, 0)


@pytest.mark.parametrize("lost", sampled([["scheduler.pt"], ["scheduler.pt", "optimizer.pt"]], keep=[["scheduler.pt"]]))
def test_a_resume_that_lost_the_scheduler_is_told_before_its_first_step(lost, tmp_path):
    """The Trainer says nothing, and the rate goes back to its peak (anchors, section 2)."""
    run(tmp_path, save_strategy="steps", save_steps=20, **GUIDES)
    checkpoint = tmp_path / "checkpoint-20"
    for name in lost:
        (checkpoint / name).unlink()
    trainer = make_trainer(tmp_path / "resumed", [ScheduleWatch()], max_steps=40, **GUIDES)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    rates = logged(trainer, "learning_rate")
    assert max(rates[22:]) > 1.5 * rates[19]
    (alarm,) = events(tmp_path / "resumed", "alarm")
    assert (alarm["verdict"], alarm["step"]) == ("off_plan", 20)
    assert "scheduler.pt" in alarm["message"]


@pytest.mark.trials
def test_a_whole_resume_and_a_constant_rate_without_its_scheduler_are_silent(tmp_path):
    for name, arguments, lost in (
        ("whole", GUIDES, ()),
        ("constant", {"lr_scheduler_type": "constant"}, ("scheduler.pt",)),
    ):
        run(tmp_path / name, save_strategy="steps", save_steps=20, **arguments)
        checkpoint = tmp_path / name / "checkpoint-20"
        for each in lost:
            (checkpoint / each).unlink()
        watch = ScheduleWatch()
        make_trainer(tmp_path / f"{name} resumed", [watch], max_steps=40, **arguments).train(
            resume_from_checkpoint=str(checkpoint)
        )
        assert events(tmp_path / f"{name} resumed", "alarm") == []
        assert watch.detector.last_step == 40
    assert events(tmp_path / "whole resumed", "note")[-1]["peak_step"] == 3  # of the attempt before


class Sets(TrainerCallback):
    """Multiplies the rate of one step, or of the schedule from one step on."""

    def __init__(self, step, factor, base=False):
        self.step, self.factor, self.base = step, factor, base

    def on_step_begin(self, args, state, control, optimizer=None, lr_scheduler=None, **kwargs):
        if state.global_step + 1 == self.step:
            for group in optimizer.param_groups:
                group["lr"] *= self.factor
            if self.base:
                lr_scheduler.base_lrs = [rate * self.factor for rate in lr_scheduler.base_lrs]


@pytest.mark.parametrize("base", [False, True])
def test_a_rate_that_somebody_raises_is_told_at_its_step(base, tmp_path):
    run(tmp_path, others=[Sets(25, 3.0, base)], **GUIDES)
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["verdict"], alarm["step"]) == ("off_plan", 25)
    assert alarm["learning_rate"] == pytest.approx(3 * alarm["planned"])


def test_a_rate_that_somebody_lowers_is_no_alarm(tmp_path):
    run(tmp_path, others=[Sets(25, 0.5, base=True)], **GUIDES)
    assert events(tmp_path, "alarm") == []


def test_the_schedule_is_not_touched(tmp_path):
    plain = make_trainer(tmp_path / "plain", [], max_steps=40, **GUIDES)
    plain.train()
    watched = run(tmp_path / "watched", **GUIDES)
    assert logged(watched, "learning_rate") == logged(plain, "learning_rate")
    assert torch.equal(weights(watched.model), weights(plain.model))


def test_a_scheduler_that_steps_once_for_each_process_is_followed(monkeypatch):
    """accelerate steps a prepared scheduler as often as there are processes; its length is told in those steps."""
    from accelerate import Accelerator
    from transformers import get_linear_schedule_with_warmup

    from hf_recipes.callbacks.schedule import _plan_of

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(PoisonModel().parameters(), lr=1.0)
    prepared = accelerator.prepare_scheduler(get_linear_schedule_with_warmup(optimizer, 0, 40))
    plan = _plan_of(prepared)
    assert (plan.length, plan.rate(10)) == (40, 0.75)
    monkeypatch.setattr("hf_recipes.callbacks.schedule.AcceleratorState", lambda: SimpleNamespace(num_processes=2))
    plan = _plan_of(prepared)
    assert (plan.length, plan.rate(10)) == (20, 0.5)


def test_the_share_of_the_peak_is_that_of_the_highest_group():
    layers = PoisonModel()
    optimizer = torch.optim.SGD(
        [
            {"params": layers.head.parameters(), "lr": 0.1, "initial_lr": 1.0},
            {"params": layers.embedding.parameters(), "lr": 0.05, "initial_lr": 0.1},
        ]
    )
    assert peak_share(optimizer) == 0.5
    assert peak_share(torch.optim.SGD(layers.parameters(), lr=0.0)) == 1.0


def test_steps_that_a_loss_scaler_skips_hold_the_schedule_back_without_alarm(tmp_path):
    trainer = run(tmp_path, others=[LossScaled()], lr_scheduler_type="linear")
    assert set(logged(trainer, "learning_rate")) == {1e-2}
    assert events(tmp_path, "alarm") == []


def test_a_schedule_with_warm_restarts_that_cannot_be_looked_into_is_silent(tmp_path):
    model = PoisonModel()
    trainer = make_trainer(tmp_path, [ScheduleWatch()], model=model, max_steps=12)
    trainer.optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    trainer.lr_scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(trainer.optimizer, 4)
    trainer.train()
    assert events(tmp_path, "alarm") == []
