"""The gate that all watchers share."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils.deepspeed import DeepSpeedOptimizerWrapper
from torch import nn

from hf_recipes.callbacks.gradients import GradientGate
from hf_recipes.callbacks.reading import BadMicroBatch


def arguments(max_grad_norm=1.0, fp16=False):
    return SimpleNamespace(max_grad_norm=max_grad_norm, device=torch.device("cpu"), fp16=fp16)


def model_with_gradient(*values):
    model = nn.Linear(len(values), 1, bias=False)
    model.weight.grad = torch.tensor([values])
    return model


def test_watchers_of_one_run_share_a_gate_and_the_first_to_leave_gives_clipping_back():
    model, args = model_with_gradient(1.0), arguments(0.5)
    optimizer = torch.optim.SGD(model.parameters())
    first, second = GradientGate.open(args, model, optimizer), GradientGate.open(args, model, optimizer)
    assert first is second
    assert args.max_grad_norm == 0.0
    first.close(model)
    assert args.max_grad_norm == 0.5
    second.close(model)
    assert args.max_grad_norm == 0.5
    assert not model._forward_hooks


def test_a_gate_left_over_by_an_exception_is_replaced():
    model, args = model_with_gradient(1.0), arguments(0.5)
    old = GradientGate.open(args, model, torch.optim.SGD(model.parameters()))
    new = GradientGate.open(args, model, torch.optim.SGD(model.parameters()))
    assert new is not old
    assert new.max_grad_norm == 0.5
    assert len(model._forward_hooks) == 1
    new.close(model)
    assert args.max_grad_norm == 0.5


def test_norm_is_before_the_clip_and_gradients_after_it():
    model = model_with_gradient(3.0, 4.0)  # norm 5
    gate = GradientGate.open(arguments(1.0), model, torch.optim.SGD(model.parameters()))
    assert gate.measure(6, model).norm == 5.0
    assert gate.measure(6, model).step == 7
    torch.testing.assert_close(model.weight.grad, torch.tensor([[0.6, 0.8]]))  # (3, 4) / 5, clipped once
    gate.close(model)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_bad_micro_batch_is_remembered_though_later_ones_are_healthy(value):
    model = model_with_gradient(1.0, 1.0)
    gate = GradientGate.open(arguments(), model, torch.optim.SGD(model.parameters()))
    gate.end_micro_batch(model)
    model.weight.grad[0, 0] = value
    gate.end_micro_batch(model)
    model.weight.grad[0, 0] = 1.0
    assert gate.measure(0, model).bad == BadMicroBatch("gradient", 2, 0)
    assert gate.measure(1, model).bad is None  # the next step starts clean
    gate.close(model)


@pytest.mark.parametrize(
    ("engine", "norm", "bad"),
    [
        ({"_global_grad_norm": 2.5}, 2.5, None),
        ({"_global_grad_norm": torch.tensor(2.5)}, 2.5, None),
        ({"_global_grad_norm": math.inf}, math.nan, BadMicroBatch("gradient", None, 0)),
        ({"_global_grad_norm": None, "overflow": True}, math.nan, BadMicroBatch("gradient", None, 0)),
        ({}, None, None),
    ],
)
def test_under_deepspeed_the_engines_norm_is_read_and_nothing_is_touched(engine, norm, bad):
    Accelerator(cpu=True)  # the wrapper asks for its state
    model = nn.Linear(2, 1)
    inner = torch.optim.SGD(model.parameters())
    for name, value in engine.items():
        setattr(inner, name, value)
    args = arguments(0.5)
    gate = GradientGate.open(args, model, DeepSpeedOptimizerWrapper(inner))
    reading = gate.measure(0, model)
    assert args.max_grad_norm == 0.5
    assert reading.norm is norm or reading.norm == pytest.approx(norm, nan_ok=True)
    assert reading.bad == bad
    assert gate.skip_update() is False
    gate.close(model)
