"""An adapter against its base by headers alone, without being asked."""

from __future__ import annotations

import json

import pytest
import torch
from checkpoint_helpers import tiny_llama
from peft import IA3Config, LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from hf_recipes.checkpoints.verification.verify import verify_checkpoint

QV = ["q_proj", "v_proj"]


def make_adapter(directory, config, **base_changes):
    """An adapter whose config names a base of other sizes than it was made for."""
    get_peft_model(tiny_llama(), config).save_pretrained(directory / "adapter")
    tiny_llama(**base_changes).save_pretrained(directory / "base")
    name_base(directory / "adapter", directory / "base")
    return directory / "adapter"


def name_base(adapter, base):
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "base_model_name_or_path": str(base)}))


def found(adapter):
    return [str(problem) for problem in verify_checkpoint(adapter, "structure").problems]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (LoraConfig(target_modules=QV), "adds a 32 × 32 matrix"),
        (LoraConfig(target_modules=QV, use_dora=True), "scales 32 rows"),
        (LoraConfig(target_modules=["embed_tokens"]), "adds to 64 tokens"),
        (LoraConfig(target_modules=QV, trainable_token_indices=[1, 2]), "replaces rows of 32 values"),
        (IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]), "scales 64 rows"),
    ],
)
def test_shapes_of_another_base_are_found_by_structure_alone(config, words, tmp_path):
    changes = {"hidden_size": 40, "head_dim": 10, "intermediate_size": 96, "vocab_size": 72}
    assert any(words in problem for problem in found(make_adapter(tmp_path, config, **changes)))


def test_the_base_it_was_made_for_is_good(tmp_path):
    assert found(make_adapter(tmp_path, LoraConfig(target_modules=[*QV, "embed_tokens"], use_dora=True))) == []


def test_a_base_whose_index_is_no_map_is_noted(tmp_path):
    adapter = make_adapter(tmp_path, LoraConfig(target_modules=QV))
    (tmp_path / "base" / "model.safetensors.index.json").write_text('{"weight_map": ["a"]}')
    report = verify_checkpoint(adapter, "structure")
    assert report.ok
    assert any("the base cannot be read" in note and "not a map of tensors" in note for note in report.notes)


def test_a_base_with_other_names_is_noted(tmp_path):
    adapter = make_adapter(tmp_path, LoraConfig(target_modules=QV))
    save_file({"h.0.weight": torch.ones(2, 2)}, tmp_path / "base" / "model.safetensors")
    report = verify_checkpoint(adapter, "structure")
    assert report.ok
    assert any("another base" in note for note in report.notes)


def test_a_base_saved_without_its_head_and_with_transposed_weights_is_good(tmp_path):
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    model.transformer.save_pretrained(tmp_path / "base")
    assert "h.0.attn.c_attn.weight" in load_file(tmp_path / "base" / "model.safetensors")
    adapter = get_peft_model(model, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))
    adapter.save_pretrained(tmp_path / "adapter")
    name_base(tmp_path / "adapter", tmp_path / "base")
    report = verify_checkpoint(tmp_path / "adapter", "structure")
    assert report.ok
    assert not any("another base" in note for note in report.notes)


def test_a_tokenizer_with_more_tokens_than_the_base_has_rows_is_found(tmp_path):
    adapter = make_adapter(tmp_path, LoraConfig(target_modules=QV))
    (adapter / "added_tokens.json").write_text(json.dumps({"<new>": 63}))
    assert found(adapter) == []
    (adapter / "added_tokens.json").write_text(json.dumps({"<new>": 65}))
    (problem,) = found(adapter)
    assert "up to 65, but the embedding has 64 rows" in problem


def test_an_adapter_that_brings_its_own_embedding_is_held_against_that(tmp_path):
    model = tiny_llama(tie_word_embeddings=False)
    model.resize_token_embeddings(70)
    adapted = get_peft_model(model, LoraConfig(target_modules=QV, modules_to_save=["embed_tokens", "lm_head"]))
    adapted.save_pretrained(tmp_path / "adapter")
    tiny_llama(tie_word_embeddings=False).save_pretrained(tmp_path / "base")
    name_base(tmp_path / "adapter", tmp_path / "base")
    (tmp_path / "adapter" / "added_tokens.json").write_text(json.dumps({"<new>": 69}))
    assert found(tmp_path / "adapter") == []
    (tmp_path / "adapter" / "added_tokens.json").write_text(json.dumps({"<new>": 71}))
    assert len(found(tmp_path / "adapter")) == 1


def test_an_adapter_for_more_layers_than_the_base_has_is_found(tmp_path):
    (problem,) = found(make_adapter(tmp_path, LoraConfig(target_modules=["q_proj"]), num_hidden_layers=1))
    assert "layers.1.self_attn.q_proj" in problem
    assert "a layer that the base" in problem
