"""The loss of a real Trainer, as `LossWatch` sees it."""

from __future__ import annotations

import math

import pytest
import torch
from sampled import sampled
from torch import nn
from transformers import TrainerCallback
from watch_helpers import NAN_LOSS_ONLY, VOCABULARY, PoisonModel, logged, make_trainer, rows, weights

from hf_recipes.callbacks.loss_watch import LossWatch
from hf_recipes.callbacks.non_finite import NonFiniteGuard
from hf_recipes.core.events import read_events


def events(path, kind):
    return [event for event in read_events(path) if event["kind"] == kind]


def run(path, callbacks=None, **options):
    trainer = make_trainer(path, callbacks or [LossWatch()], **{"max_steps": 60, **options})
    trainer.train()
    return trainer


class Loud(PoisonModel):
    """Its loss is multiplied at one step, by a factor that leaves the gradient alone."""

    def __init__(self, at, factor):
        super().__init__()
        self.at, self.factor, self.calls = at, factor, 0

    def forward(self, input_ids, labels):
        out = super().forward(input_ids, labels)
        self.calls += self.training
        more = out["loss"].detach() * (self.factor - 1) if self.calls == self.at else 0.0
        return {**out, "loss": out["loss"] + more}


HEALTHY = {
    "rows": {},
    "accumulated": {"gradient_accumulation_steps": 4, "max_steps": 30},
    "slow": {"per_device_train_batch_size": 8, "learning_rate": 1e-3, "max_steps": 100},
    "two batches in turn": {"per_device_train_batch_size": 8, "data": rows(16), "max_steps": 120},
    "one row, over and over": {"data": rows(1), "max_steps": 120},
    "one batch": {"per_device_train_batch_size": 16, "data": rows(16), "learning_rate": 3e-2, "max_steps": 150},
    "sgd": {"optim": "sgd", "learning_rate": 0.5, "max_steps": 120},
    "restarts": {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 3}},
}


@pytest.mark.parametrize("name", sampled(HEALTHY, keep=["rows", "accumulated", "one row, over and over", "sgd"]))
def test_a_healthy_run_is_silent_until_the_end(name, tmp_path):
    trainer = run(tmp_path, **HEALTHY[name])
    assert events(tmp_path, "alarm") == []
    (note,) = events(tmp_path, "note")
    assert note["first_level"] == pytest.approx(sorted(logged(trainer, "loss")[:4])[1], rel=0.2)
    assert set(note["counts"]) == {"warming_up", "healthy"}
    assert "none" in note["message"]


def test_what_is_seen_is_the_loss_that_the_trainer_logs(tmp_path):
    watch = LossWatch()
    trainer = run(tmp_path, [watch], gradient_accumulation_steps=3, max_steps=12)
    assert list(watch.detector.recent) == pytest.approx(logged(trainer, "loss"), abs=1e-4)


@pytest.mark.parametrize("at", sampled([21, 40], keep=[21]))
def test_a_spike_is_told_at_its_step(at, tmp_path):
    run(tmp_path, model=Loud(at, 30.0), warmup_steps=3)
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["detector"], alarm["verdict"], alarm["step"]) == ("loss", "spike", at)
    assert alarm["loss"] > alarm["limit"] > alarm["level"]
    assert "halve learning_rate (0.01 → 0.005)" in alarm["message"]
    assert "warmup_steps: 3 → 6" in alarm["message"]


def test_one_loud_micro_batch_of_four_is_a_spike(tmp_path):
    run(tmp_path, model=Loud(4 * 25 + 2, 100.0), gradient_accumulation_steps=4, max_steps=30)
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["verdict"], alarm["step"]) == ("spike", 26)


class Faster(TrainerCallback):
    """Sets another rate from one step on; `growth` raises it further at each step."""

    def __init__(self, start, rate, growth):
        self.start, self.rate, self.growth = start, rate, growth

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        if state.global_step >= self.start:
            for group in optimizer.param_groups:
                group["lr"] = self.rate * self.growth ** (state.global_step - self.start)


def unlearnable(count):
    """Labels by chance: the loss has a floor, and a rate that is too high throws it up."""
    generator = torch.Generator().manual_seed(1)
    made = [torch.randint(0, 20, (2, 6), generator=generator) for _ in range(count)]
    return [{"input_ids": ids, "labels": labels} for ids, labels in made]


@pytest.mark.parametrize("start", sampled([0, 60], keep=[60]))
@pytest.mark.parametrize(("rate", "growth"), [(30.0, 1.0), (1.0, 1.15)], ids=["at once", "growing"])
def test_a_learning_rate_that_diverges_is_told_within_fifty_steps(start, rate, growth, tmp_path):
    watch, faster = LossWatch(), Faster(start, rate, growth)
    options = {"optim": "sgd", "learning_rate": 0.3, "max_grad_norm": 0.0, "per_device_train_batch_size": 8}
    run(tmp_path, [watch, faster], data=unlearnable(800), max_steps=start + 50, **options)
    alarms = events(tmp_path, "alarm")
    assert alarms and start < alarms[0]["step"] <= start + 50
    verdicts = [alarm["verdict"] for alarm in alarms]
    assert "rising" in verdicts
    assert len(verdicts) == len(set(verdicts)) and set(verdicts) <= {"spike", "rising", "not_finite"}


class Frozen(PoisonModel):
    """Predicts even shares whatever the input, or a constant loss."""

    def __init__(self, constant=False):
        super().__init__()
        self.constant = constant

    def forward(self, input_ids, labels):
        out = super().forward(input_ids, labels)
        return {**out, "loss": out["loss"] * 0 + 1.2345678} if self.constant else out


def test_a_constant_loss_is_stuck(tmp_path):
    run(tmp_path, model=Frozen(constant=True), max_steps=20)
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["verdict"], alarm["step"], alarm["prior"]) == ("stuck", 5, None)
    assert "has been 1.23457 for 5 steps" in alarm["message"]


class Blind(nn.Module):
    """Learns the labels' shares and sees nothing of the inputs."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(VOCABULARY))

    def forward(self, input_ids, labels):
        logits = self.logits.expand(*labels.shape, VOCABULARY)
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), "logits": logits}


def two_labels(count, share=0.5):
    """Rows of eight labels, the second of two labels in `share` of them, alike in every row."""
    ones = round(8 * share)
    labels = torch.tensor([1] * ones + [0] * (8 - ones))
    return [{"input_ids": torch.randint(0, 20, (8,)), "labels": labels.clone()} for _ in range(count)]


def test_a_model_locked_to_the_prior_is_told_its_entropy(tmp_path):
    run(tmp_path, model=Blind(), data=two_labels(200), learning_rate=0.3, max_steps=160, lr_scheduler_type="constant")
    alarm = events(tmp_path, "alarm")[-1]
    assert (alarm["verdict"], alarm["prior"]) == ("stuck", "the entropy of the label prior")
    assert alarm["level"] == pytest.approx(math.log(2), rel=0.01)
    assert "which equals the entropy of the label prior" in alarm["message"]
    assert "has learned nothing of the inputs" in alarm["message"]


def test_one_label_in_nearly_all_places_is_named_with_its_share(tmp_path):
    # None or two of 200 labels are the rare one: its share is 1/200.
    made = [torch.tensor([1] * (2 * (row % 2)) + [5] * (200 - 2 * (row % 2))) for row in range(200)]
    data = [{"input_ids": labels.clone(), "labels": labels.clone()} for labels in made]
    model = Blind()
    with torch.no_grad():
        model.logits.fill_(-30.0)
        model.logits[5], model.logits[1] = math.log(0.995), math.log(0.005)
    run(tmp_path, model=model, data=data, learning_rate=1e-5, max_steps=110)
    (alarm,) = events(tmp_path, "alarm")
    assert (alarm["verdict"], alarm["step"]) == ("stuck", 100)
    noted = next(each for each in events(tmp_path, "note") if each.get("verdict") == "unlearned")
    assert noted["message"].startswith("Step 50: the loss is still")
    assert "no better than the entropy of the label prior" in noted["message"]
    assert "one label: 5 is 99.5% of them" in alarm["message"]


def test_the_next_run_starts_afresh_and_lets_go_of_model_and_data(tmp_path):
    watch = LossWatch()
    trainer = run(tmp_path, [watch], max_steps=6)
    assert watch.detector.reference_levels is dict
    trainer.train()
    assert watch.detector.counts.total() == 6


def test_a_nan_is_told_once_without_the_guard_and_left_to_it_with_it(tmp_path):
    poison = {10: NAN_LOSS_ONLY, 11: NAN_LOSS_ONLY}
    watch = LossWatch()
    run(tmp_path / "alone", [watch], data=rows(64, poison), max_steps=30)
    (alarm,) = events(tmp_path / "alone", "alarm")
    assert (alarm["verdict"], alarm["step"]) == ("not_finite", 11)
    assert watch.detector.counts["not_finite"] == 2
    assert len(watch.detector.recent) == 28
    run(tmp_path / "guarded", [LossWatch(), NonFiniteGuard("skip")], data=rows(64, poison), max_steps=30)
    assert {each["detector"] for each in events(tmp_path / "guarded", "alarm")} == {"non_finite"}


def test_resume_goes_on_where_the_run_was(tmp_path):
    whole, resumed = LossWatch(), LossWatch()
    run(tmp_path / "whole", [whole], max_steps=20, save_strategy="steps", save_steps=10)
    trainer = make_trainer(tmp_path / "resumed", [resumed], max_steps=20)
    trainer.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-10"))
    assert resumed.detector.state_dict() == whole.detector.state_dict()


def test_watching_changes_no_number(tmp_path):
    ends = [weights(run(tmp_path, callbacks, max_steps=12).model) for callbacks in ([LossWatch()], [NonFiniteGuard()])]
    torch.testing.assert_close(*ends, rtol=0, atol=0)


def test_a_long_run_waits_longer_at_the_prior(tmp_path):
    watch = LossWatch()
    trainer = make_trainer(tmp_path, [watch], max_steps=1000)
    state = trainer.state
    state.max_steps = 1000
    watch.on_train_begin(
        trainer.args, state, trainer.control, model=trainer.model, optimizer=trainer.create_optimizer()
    )
    assert watch.detector.locked_after == 100
    watch.on_train_end(trainer.args, state, trainer.control, model=trainer.model)
