"""Level "reload": what only loading shows. The files' form, shapes and values are sound in all of these."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from checkpoint_helpers import tiny_llama
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.checkpoints.probe import take_probe
from hf_recipes.checkpoints.verification.verify import verify_checkpoint

MODEL = "model.safetensors"
ADAPTER = "adapter_model.safetensors"


@pytest.fixture
def gpt2(tmp_path):
    """A layout that config_shapes does not know."""
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 64, "n_positions": 32}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


def change_tensors(file, change):
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def found(directory, *words, **settings):
    report = verify_checkpoint(directory, "reload", **settings)
    return [str(problem) for problem in report.problems if all(word in str(problem) for word in words)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop("transformer.h.1.ln_2.weight"), ("h.1.ln_2.weight", "initialised anew")),
        (lambda t: t.update(stranger=torch.ones(2)), ("stranger", "drops it")),
        (lambda t: t.update({"transformer.ln_f.bias": torch.zeros(8)}), ("ln_f.bias", "another shape")),
    ],
)
def test_a_missing_a_surplus_and_a_misshapen_tensor_are_problems(change, words, gpt2):
    assert found(gpt2) == []
    change_tensors(gpt2 / MODEL, change)
    assert verify_checkpoint(gpt2, "content").ok
    assert found(gpt2, *words)


def test_weights_that_are_finite_but_give_no_finite_answer_are_a_problem(gpt2):
    change_tensors(gpt2 / MODEL, lambda t: t["transformer.h.0.mlp.c_fc.weight"].fill_(3e38))
    assert verify_checkpoint(gpt2, "content").ok
    assert found(gpt2, "NaN or Inf")


def probed(model, directory):
    model.save_pretrained(directory)
    write_manifest(directory, {"probe": take_probe(model)})
    return directory


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_that_answers_as_when_it_was_saved_is_good(dtype, tmp_path):
    report = verify_checkpoint(probed(tiny_llama().to(dtype), tmp_path), "reload")
    assert report.ok, report.problems
    assert report.notes == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_another_model_under_the_same_probe_is_a_problem(dtype, tmp_path):
    """Sound files, another model: a manifest made anew for weights that are not those that were saved."""
    model = tiny_llama().to(dtype)
    probe = take_probe(model)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(model.model.embed_tokens.weight.roll(1, dims=0))
    model.save_pretrained(tmp_path)
    write_manifest(tmp_path, {"probe": probe})
    assert verify_checkpoint(tmp_path, "content").ok
    assert found(tmp_path, "logits differ by up to", "rounding explains")


def test_a_difference_within_rounding_is_told_and_no_problem(tmp_path):
    model = tiny_llama()
    probe = take_probe(model)
    model.save_pretrained(tmp_path)
    write_manifest(tmp_path, {"probe": {**probe, "logits": [value + 1e-5 for value in probe["logits"]]}})
    report = verify_checkpoint(tmp_path, "reload")
    assert report.ok
    assert any("within what rounding explains" in note for note in report.notes)


@pytest.mark.parametrize(
    "probe", [{"logits": ["x"]}, {"logits": [1.0]}, {"input_ids": [10**9], "logits": [1.0], "places": [0]}]
)
def test_a_probe_that_cannot_be_compared_is_noted(probe, tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    write_manifest(tmp_path, {"probe": probe})
    report = verify_checkpoint(tmp_path, "reload")
    assert report.ok
    assert any("could not be compared" in note for note in report.notes)


@pytest.fixture
def adapter(tiny_model_dir, tmp_path):
    """A LoRA adapter that changes the answers, beside a copy of its base."""
    base = shutil.copytree(tiny_model_dir, tmp_path / "base")
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), LoraConfig(target_modules=["q_proj", "v_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


def rename(tensors, old, new):
    for name in [name for name in tensors if old in name]:
        tensors[name.replace(old, new)] = tensors.pop(name)


def test_an_adapter_whose_keys_peft_would_drop_is_a_problem(adapter):
    assert found(adapter) == []
    change_tensors(
        adapter / ADAPTER, lambda tensors: rename(tensors, "layers.1.self_attn.v_proj", "layers.1.self_attn.other")
    )
    assert len(found(adapter, "layers.1.self_attn.v_proj", "leaves it as it was initialised")) == 2
    assert len(found(adapter, "layers.1.self_attn.other", "PEFT drops it")) == 2


def test_an_adapter_without_its_base_is_noted_and_found_again_by_the_option(adapter, tmp_path):
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    report = verify_checkpoint(adapter, "reload")
    assert report.ok
    assert any("not on this machine" in note and "--base" in note for note in report.notes)
    report = verify_checkpoint(adapter, "reload", base=tmp_path / "elsewhere")
    assert report.ok
    assert not any("not loaded" in note for note in report.notes)


def test_the_base_that_the_run_recorded_is_found(adapter, tmp_path):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": "org/unknown"}))
    assert any("not on this machine" in note for note in verify_checkpoint(adapter, "reload").notes)
    (tmp_path / "run.json").write_text(json.dumps({"base_model": {"name_or_path": str(tmp_path / "base")}}))
    assert not any("not on this machine" in note for note in verify_checkpoint(adapter, "reload").notes)


def test_a_base_that_is_damaged_is_told(adapter, tmp_path):
    content = (tmp_path / "base" / MODEL).read_bytes()
    (tmp_path / "base" / MODEL).write_bytes(content[:-1])
    report = verify_checkpoint(adapter, "structure")
    assert report.ok
    assert any("the base cannot be read" in note for note in report.notes)
    assert found(adapter, "the base cannot be read", base=tmp_path / "base")


def test_an_adapter_of_a_method_peft_does_not_know_is_not_loaded_and_that_is_told(adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "peft_type": "FUTURE"}))
    report = verify_checkpoint(adapter, "reload")
    assert report.ok
    assert any("knows no method FUTURE" in note for note in report.notes)


def test_an_adapter_that_changes_nothing_though_it_holds_values_is_a_problem(adapter):
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 0}))
    assert verify_checkpoint(adapter, "content").ok
    assert found(adapter, "changes no answer of its base")


@pytest.mark.parametrize("values", [0.0, 1e-12])
def test_an_adapter_that_has_hardly_begun_is_noted(values, adapter):
    change_tensors(
        adapter / ADAPTER, lambda tensors: [t.fill_(values) for name, t in tensors.items() if "lora_B" in name]
    )
    report = verify_checkpoint(adapter, "reload")
    assert report.ok
    assert any("learned nothing" in note or "changes no answer" in note for note in report.notes)
