"""A run that cannot learn stops at its first step."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from watch_helpers import PoisonModel, make_trainer, weights

from hf_recipes.callbacks.trainable import TrainableGuard
from hf_recipes.core.errors import UserError
from hf_recipes.core.events import read_events


class Unused(PoisonModel):
    """Trains only a layer that the forward pass multiplies by zero, or does not use at all."""

    def __init__(self, factor):
        super().__init__()
        self.requires_grad_(False)
        self.adapter = nn.Linear(4, 4, bias=False)
        self.factor = factor

    def forward(self, input_ids, labels):
        out = super().forward(input_ids, labels)
        if self.factor is None:  # only the loss itself asks for a gradient, as when requires_grad is lost on the way
            return {**out, "loss": out["loss"] + torch.zeros((), requires_grad=True)}
        return {**out, "loss": out["loss"] + self.factor * self.adapter.weight.sum()}


def test_t7_nothing_trainable_is_refused_at_the_start(tmp_path):
    model = PoisonModel().requires_grad_(False)
    trainer = make_trainer(tmp_path, [TrainableGuard()], model=model)
    with pytest.raises(UserError, match=r"None of the 3 parameter tensors is trainable\..*lora_target_modules"):
        trainer.train()
    assert trainer.args.max_grad_norm == 1.0


@pytest.mark.parametrize("factor", [0.0, None])
def test_t7_a_zero_first_gradient_stops_before_the_update(factor, tmp_path):
    guard = TrainableGuard()
    trainer = make_trainer(tmp_path, [guard], model=Unused(factor), weight_decay=0.1)
    before = weights(trainer.model)
    trainer.train()
    assert trainer.state.global_step == 1
    torch.testing.assert_close(weights(trainer.model), before, rtol=0, atol=0)
    (alarm,) = [event for event in read_events(tmp_path) if event["kind"] == "alarm"]
    assert guard.tripped == alarm["message"]
    assert (alarm["detector"], alarm["step"], alarm["trainable"]) == ("trainable", 1, 1)
    assert alarm["without_gradient"] == (1 if factor is None else 0)
    assert ("adapter.weight" in guard.tripped) == (factor is None)
    assert "enable_input_require_grads" in guard.tripped


def test_a_healthy_first_step_is_silent(tmp_path):
    guard = TrainableGuard()
    make_trainer(tmp_path, [guard]).train()
    assert guard.tripped is None
    assert read_events(tmp_path) == []


def test_a_fresh_lora_whose_a_matrices_have_no_gradient_yet_is_healthy(tmp_path, tiny_model):
    from peft import LoraConfig, get_peft_model
    from watch_helpers import rows

    guard = TrainableGuard()
    model = get_peft_model(tiny_model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    make_trainer(tmp_path, [guard], rows(8), model).train()
    assert guard.tripped is None
