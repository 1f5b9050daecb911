"""A few answers kept with a checkpoint, and that asking for them leaves nothing behind."""

from __future__ import annotations

import math
import random

import pytest
import torch
from checkpoint_helpers import lora_config, make_trainer, tiny_llama
from peft import PeftModel, get_peft_model
from transformers import LlamaForCausalLM, LlamaForSequenceClassification, T5Config, T5ForConditionalGeneration

from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import read_manifest
from hf_recipes.checkpoints.probe import answer_probe, compare_probe, take_probe


def test_a_loaded_full_model_gives_the_answers_in_the_manifest(full_run):
    probe = read_manifest(full_run / "checkpoint-2").extra["probe"]
    assert len(probe["input_ids"]) == 16
    assert len(probe["logits"]) == len(probe["places"]) == 32
    assert max(probe["input_ids"]) < 64
    assert (probe["dtype"], probe["quantization"]) == ("float32", None)
    loaded = LlamaForCausalLM.from_pretrained(full_run / "checkpoint-2")
    assert compare_probe(probe, answer_probe(loaded, probe)) < 1e-5
    with torch.no_grad():
        loaded.model.norm.weight[0] += 1.0
    assert compare_probe(probe, answer_probe(loaded, probe)) > 1e-3


def test_a_loaded_adapter_gives_them_too(lora_run):
    probe = read_manifest(lora_run / "checkpoint-2").extra["probe"]
    base = tiny_llama()
    without = compare_probe(probe, answer_probe(base, probe))
    loaded = PeftModel.from_pretrained(base, lora_run / "checkpoint-2")
    assert compare_probe(probe, answer_probe(loaded, probe)) < 1e-5 < without


def test_autocast_of_the_training_is_left_out(tmp_path):
    """What is kept is what the weights in their own dtype give, as who loads them will compute it."""
    trainer = make_trainer(tmp_path, [CheckpointKeeper()], bf16=True, max_steps=1)
    trainer.train()
    probe = read_manifest(tmp_path / "checkpoint-1").extra["probe"]
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-1")
    assert compare_probe(probe, answer_probe(loaded, probe)) < 1e-5


def test_modes_gradients_random_states_and_hooks_are_as_before():
    model = get_peft_model(tiny_llama(), lora_config())
    model.train()
    model.get_base_model().model.layers[1].eval()
    calls = []
    model.register_forward_hook(lambda *_: calls.append("model"))
    modes = [module.training for module in model.modules()]
    states = torch.get_rng_state(), random.getstate()
    assert take_probe(model)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert calls == []
    assert all(each.grad is None for each in model.parameters())


def test_a_classifier_keeps_all_its_logits():
    model = LlamaForSequenceClassification(tiny_llama(num_labels=3, pad_token_id=0).config)
    probe = take_probe(model)
    assert (probe["places"], len(probe["logits"])) == ([0, 1, 2], 3)


@pytest.mark.parametrize(
    "model",
    [
        lambda: torch.nn.Linear(2, 2),
        lambda: T5ForConditionalGeneration(T5Config(vocab_size=64, d_model=8, d_ff=8, num_layers=1, num_heads=1)),
        lambda: tiny_llama().to("meta"),
    ],
    ids=["plain module", "encoder-decoder", "not here"],
)
def test_where_ids_alone_give_no_answer_there_is_no_probe(model):
    assert take_probe(model()) is None


def test_short_position_tables_are_not_overrun():
    assert len(take_probe(tiny_llama(max_position_embeddings=8))["input_ids"]) == 4


def test_the_difference_is_the_largest_and_nan_stays():
    probe = {"logits": [0.0, 1.0, "nan"]}
    assert math.isnan(compare_probe(probe, [0.0, 0.0, 0.0]))
    assert compare_probe({"logits": [0.0, 1.0]}, [0.5, 1.25]) == 0.5
