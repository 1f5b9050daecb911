"""The model afterwards is the model before, bit for bit, and so is everything random."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import make_tiny_llama

from hf_recipes.training.overfit import snapshot as snapshots
from hf_recipes.training.overfit.snapshot import as_it_was, without_dropout


def bits(model):
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: value.detach().clone().view(torch.uint8) for name, value in tensors.items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def lora(**keys):
    config = LoraConfig(r=4, lora_dropout=0.5, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **keys)
    return get_peft_model(make_tiny_llama(64), config)


def spoil(model):
    """What a test does to a model, and more."""
    batch = torch.randint(0, 64, (2, 9))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1.0)
    model(batch, labels=batch).loss.backward()
    optimizer.step()
    random.random(), numpy.random.rand(), torch.rand(1)
    model.eval()


@pytest.mark.parametrize("place", ["memory", "file"])
@pytest.mark.parametrize("method", ["lora", "full bf16"])
def test_bit_for_bit(method, place, tmp_path, monkeypatch, caplog):
    caplog.set_level("INFO", "hf_recipes")
    model = lora() if method == "lora" else make_tiny_llama(64).to(torch.bfloat16)
    model.train()
    if place == "file":
        monkeypatch.setattr(snapshots, "free_bytes", lambda device: 0)
    kept = next(each for each in model.parameters() if each.requires_grad)
    kept.grad = gradient = torch.ones_like(kept)
    before, modes = bits(model), [module.training for module in model.modules()]
    states = random.getstate(), numpy.random.get_state()[1].copy(), torch.get_rng_state()
    with as_it_was(model, tmp_path) as snapshot:
        files = [str(path) for path in tmp_path.iterdir()]
        assert [snapshot.place] == (files if place == "file" else ["memory"])
        assert len(files) == (place == "file")
        assert ("weights are copied to" in caplog.text) == (place == "file")
        spoil(model)
        assert not same(bits(model), before)
        moved, changed = snapshot.moved()
        assert moved > 0.1
        assert changed > 0.3  # lora_A has no gradient while lora_B is zero
    assert same(bits(model), before)
    assert [module.training for module in model.modules()] == modes
    assert kept.grad is gradient
    assert all(each.grad is None for each in model.parameters() if each is not kept)
    assert random.getstate() == states[0]
    assert (numpy.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    assert list(tmp_path.iterdir()) == []


def test_also_after_an_error(tmp_path):
    model = lora()
    before = bits(model)
    with pytest.raises(RuntimeError, match="lost"), as_it_was(model, tmp_path):
        spoil(model)
        raise RuntimeError("lost")
    assert same(bits(model), before)


def test_without_dropout_the_model_trains_and_drops_nothing():
    model = lora()
    model.base_model.model.model.layers[0].self_attn.attention_dropout = 0.3
    model.eval()
    for each in model.parameters():  # lora_B begins at zero, which hides dropout
        each.data.normal_(0, 0.1)
    batch = torch.randint(0, 64, (2, 9))
    with without_dropout(model):
        assert model.training
        assert torch.equal(model(batch).logits, model(batch).logits)
    assert not model.training
    assert model.base_model.model.model.layers[0].self_attn.attention_dropout == 0.3
    model.train()
    assert not torch.equal(model(batch).logits, model(batch).logits)
