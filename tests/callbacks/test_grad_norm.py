"""`GradNormWatch` sees the norm before clipping and alarms once."""

from __future__ import annotations

import pytest
from sampled import sampled
from torch import nn
from transformers import TrainerCallback
from watch_helpers import NAN_LOSS, VOCABULARY, PoisonModel, logged, make_trainer, rows

from hf_recipes.callbacks.grad_norm import GradNormWatch
from hf_recipes.callbacks.non_finite import NonFiniteGuard
from hf_recipes.core.events import read_events

SPIKE = 19  # a token that multiplies the loss, and with it the gradient


class Spiky(PoisonModel):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, input_ids, labels):
        out = super().forward(input_ids, labels)
        return {**out, "loss": out["loss"] * (self.factor if (input_ids == SPIKE).any() else 1.0)}


def spiky_rows(count, spikes):
    data = rows(count)
    for each in data:
        each["input_ids"] %= SPIKE
    for row in spikes:
        data[row]["input_ids"][0] = SPIKE
    return data


def alarms(path):
    return [event for event in read_events(path) if event["kind"] == "alarm"]


def run(tmp_path, factor, spikes):
    watch = GradNormWatch(warmup=4)
    trainer = make_trainer(
        tmp_path, [watch], spiky_rows(12, spikes), Spiky(factor), max_steps=12, max_grad_norm=0.1, optim="sgd"
    )
    trainer.train()
    return watch, trainer


def test_a_spike_is_told_with_the_norm_before_clipping(tmp_path):
    watch, trainer = run(tmp_path, 1e4, [8])
    (alarm,) = alarms(tmp_path)
    assert (alarm["detector"], alarm["verdict"], alarm["step"]) == ("grad_norm", "exploding", 9)
    assert alarm["grad_norm"] == pytest.approx(logged(trainer, "grad_norm")[8])
    assert alarm["grad_norm"] > alarm["high"] > alarm["median"]
    assert "halve learning_rate (0.01 → 0.005)" in alarm["message"]
    assert "max_grad_norm (0.1 → 0.05)" in alarm["message"]
    assert len(watch.detector.values) == 11
    (note,) = [event for event in read_events(tmp_path) if event["kind"] == "note"]
    assert note["counts"] == {"warming_up": 4, "healthy": 7, "exploding": 1}
    assert "0.5 to 2" in note["message"]


def test_a_vanishing_gradient_is_told(tmp_path):
    run(tmp_path, 1e-9, [8, 9])
    (alarm,) = alarms(tmp_path)  # two steps in a row, one alarm
    assert (alarm["verdict"], alarm["step"]) == ("vanishing", 9)
    assert "masked" in alarm["message"]


@pytest.mark.parametrize("factor", [0.0, float("nan")])
def test_zero_and_nan_while_warming_up_are_told(factor, tmp_path):
    run(tmp_path, factor, [1])
    first = alarms(tmp_path)[0]
    assert (first["verdict"], first["step"]) == ("vanishing" if factor == 0 else "not_finite", 2)


def test_the_guards_alarm_is_not_said_twice(tmp_path):
    data = rows(4, {2: NAN_LOSS})
    make_trainer(tmp_path, [GradNormWatch(), NonFiniteGuard()], data).train()
    assert [alarm["detector"] for alarm in alarms(tmp_path)] == ["non_finite"]


def test_the_norm_is_measured_once_a_step_for_all_watchers(tmp_path, monkeypatch):
    from hf_recipes.callbacks import gradients

    calls = []
    real = gradients.get_total_norm
    monkeypatch.setattr(gradients, "get_total_norm", lambda grads: calls.append(1) or real(grads))
    make_trainer(tmp_path, [GradNormWatch(), NonFiniteGuard()]).train()
    assert len(calls) == 4


def test_a_frozen_part_does_not_count(tmp_path):
    model = PoisonModel()
    model.embedding = nn.Embedding(VOCABULARY, 16).requires_grad_(False)
    trainer = make_trainer(tmp_path, [watch := GradNormWatch()], model=model)
    trainer.train()
    assert list(watch.detector.values) == pytest.approx(logged(trainer, "grad_norm"))


@pytest.mark.parametrize("per_layer", [False, True])
@pytest.mark.parametrize("max_grad_norm", sampled([0.0, 0.1], keep=[0.1]))
def test_an_exploding_gradient_names_the_layer_it_comes_from(per_layer, max_grad_norm, tmp_path):
    class HeadExplodes(PoisonModel):
        """The head's gradient alone is multiplied where the marker is met."""

        def forward(self, input_ids, labels):
            factor = 1e4 if (input_ids == SPIKE).any() else 1.0
            hook = self.head.weight.register_hook(lambda gradient: gradient * factor)
            out = super().forward(input_ids, labels)
            self.unhook = hook
            return out

    watch = GradNormWatch(warmup=4, per_layer=per_layer)
    model = HeadExplodes()
    trainer = make_trainer(
        tmp_path, [watch], spiky_rows(12, [8]), model, max_steps=12, max_grad_norm=max_grad_norm, optim="sgd"
    )
    trainer.args.learning_rate = 1e-6
    norms = {}

    class Unhook(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            norms[state.global_step] = watch.metrics()
            model.unhook.remove()

    trainer.add_callback(Unhook())
    trainer.train()
    (alarm,) = alarms(tmp_path)
    first = alarm["layers"][0]
    assert first["layer"] == "head"
    assert first["grad_norm"] == pytest.approx(alarm["grad_norm"], rel=1e-3)  # before the clip
    assert "Most of it comes from head" in alarm["message"]
    if per_layer:
        assert first["factor"] == pytest.approx(1e4, rel=0.5)
        assert norms[8]["grad_norm/head"] == pytest.approx(alarm["grad_norm"], rel=1e-3)
    else:
        assert first["factor"] == pytest.approx(1.0, abs=1e-3)
        assert set(norms[8]) == {"grad_norm_low", "grad_norm_median", "grad_norm_high"}


def test_weights_that_do_not_move_on_the_same_rows_are_told(tmp_path):
    trainer = make_trainer(tmp_path, [GradNormWatch()], rows(1) * 12, max_steps=12, learning_rate=0.0, optim="sgd")
    trainer.train()
    (alarm,) = alarms(tmp_path)
    assert (alarm["verdict"], alarm["step"]) == ("stuck", 5)
    assert "to the last bit" in alarm["message"]
