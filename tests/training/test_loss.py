from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import make_tiny_llama

from hf_recipes.training import loss as loss_module
from hf_recipes.training.loss import supervised_cross_entropy


def reference(hidden, weight, bias, labels):
    """The textbook way: all logits, shifted by one, summed over supervised positions."""
    logits = torch.nn.functional.linear(hidden, weight, bias).float()[:, :-1]
    return torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100, reduction="sum"
    )


@settings(max_examples=30, deadline=None)
@given(
    batch=st.integers(1, 3),
    length=st.integers(2, 9),
    chunk=st.integers(1, 7),
    with_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_loss_and_gradients_equal_the_textbook_for_any_chunking(batch, length, chunk, with_bias, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(batch, length, 8, generator=generator, dtype=torch.float64).float().requires_grad_()
    weight = torch.randn(16, 8, generator=generator).requires_grad_()
    bias = torch.randn(16, generator=generator).requires_grad_() if with_bias else None
    labels = torch.randint(0, 16, (batch, length), generator=generator)
    labels[torch.rand(batch, length, generator=generator) < 0.4] = -100
    inputs = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    expected = reference(hidden, weight, bias, labels)
    expected_grads = torch.autograd.grad(expected * 0.3, inputs, allow_unused=True)
    old, loss_module.CHUNK_TOKENS = loss_module.CHUNK_TOKENS, chunk
    try:
        actual = supervised_cross_entropy(hidden, weight, bias, labels)
        actual_grads = torch.autograd.grad(actual * 0.3, inputs, allow_unused=True)
    finally:
        loss_module.CHUNK_TOKENS = old
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(actual_grads, expected_grads, strict=True):
        theirs = torch.zeros(()) if theirs is None else theirs
        ours = torch.zeros_like(theirs) if ours is None else ours
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_nothing_supervised_is_zero_and_still_connected():
    hidden = torch.randn(2, 5, 8, requires_grad=True)
    loss = supervised_cross_entropy(hidden, torch.randn(16, 8), None, torch.full((2, 5), -100))
    loss.backward()
    assert loss.item() == 0.0
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))


def test_a_frozen_head_gets_no_gradient():
    weight = torch.randn(16, 8)
    hidden = torch.randn(1, 5, 8, requires_grad=True)
    supervised_cross_entropy(hidden, weight, None, torch.randint(0, 16, (1, 5))).backward()
    assert weight.grad is None
    assert hidden.grad is not None


@pytest.mark.parametrize("tied", [True, False])
def test_a_whole_model_gets_the_gradients_of_transformers_own_loss(tied):
    model = make_tiny_llama(tied=tied)
    ids = torch.randint(0, 512, (3, 20), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, :8] = -100
    expected = model(input_ids=ids, labels=labels).loss
    expected.backward()
    expected_grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    hidden = model.model(input_ids=ids).last_hidden_state
    actual = supervised_cross_entropy(hidden, model.lm_head.weight, None, labels) / (labels[:, 1:] != -100).sum()
    actual.backward()
    torch.testing.assert_close(actual, expected)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected_grads[name], rtol=1e-4, atol=1e-6)
