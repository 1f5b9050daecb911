"""Tensors against config.json, from headers alone: what is wrong is named, and what is right is never refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from checkpoint_helpers import tiny_llama
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, MixtralConfig, MixtralForCausalLM

from hf_recipes.checkpoints.verification.config_shapes import LLAMA_LIKE, _unlike_the_others
from hf_recipes.checkpoints.verification.verify import verify_checkpoint

MODEL = "model.safetensors"


@pytest.fixture
def untied(tmp_path):
    """Two layers, grouped queries, a head of its own."""
    tiny_llama(tie_word_embeddings=False, head_dim=16).save_pretrained(tmp_path)
    return tmp_path


def change_config(directory, **changes):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, **changes}))


def change_tensors(directory, change):
    tensors = load_file(directory / MODEL)
    change(tensors)
    save_file(tensors, directory / MODEL, metadata={"format": "pt"})


def found(directory):
    return [str(problem) for problem in verify_checkpoint(directory, "structure").problems]


@pytest.mark.parametrize(
    ("key", "value", "tensor"),
    [
        ("vocab_size", 65, "embed_tokens"),
        ("vocab_size", 63, "lm_head"),
        ("hidden_size", 40, "embed_tokens"),
        ("num_attention_heads", 8, "self_attn.o_proj"),
        ("num_key_value_heads", 4, "self_attn.k_proj"),
        ("head_dim", 8, "self_attn.q_proj"),
        ("intermediate_size", 128, "mlp.down_proj"),
        ("num_hidden_layers", 1, "layers.1"),
        ("num_hidden_layers", 3, "layers.2"),
        ("num_hidden_layers", 10**9, "layers"),  # in constant time and memory
    ],
)
def test_a_config_of_another_model_is_found_and_the_tensor_named(key, value, tensor, untied):
    assert found(untied) == []
    change_config(untied, **{key: value})
    assert any(tensor in problem for problem in found(untied))


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.input_layernorm.weight",
    ],
)
def test_a_tensor_that_every_model_of_its_kind_has_is_missed(name, untied):
    change_tensors(untied, lambda tensors: tensors.pop(name))
    (problem,) = found(untied)
    assert name.removeprefix("model.").removesuffix(".weight") in problem
    assert "missing" in problem


def test_a_layer_missing_in_the_middle_is_found(tmp_path):
    tiny_llama(num_hidden_layers=4).save_pretrained(tmp_path)

    def drop(tensors):
        for name in [name for name in tensors if ".layers.2." in name]:
            del tensors[name]

    change_tensors(tmp_path, drop)
    assert [problem for problem in found(tmp_path) if "model.layers.2" in problem and "as a whole" in problem]


def test_a_tied_head_may_be_absent_and_present(tmp_path):
    tiny_llama().save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / MODEL)
    assert found(tmp_path) == []
    change_tensors(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    assert found(tmp_path) == []


def test_experts_are_counted_and_measured(tmp_path):
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
    )
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    assert found(tmp_path) == []
    expert = next(name for name in load_file(tmp_path / MODEL) if ".layers.1." in name and ".experts.2." in name)
    change_tensors(tmp_path, lambda tensors: tensors.pop(expert))
    (problem,) = found(tmp_path)
    assert expert.removesuffix(".weight") in problem
    change_config(tmp_path, intermediate_size=40)
    assert any("asks for [40, 32]" in problem for problem in found(tmp_path))


def test_the_same_in_many_layers_is_told_once(tmp_path):
    tiny_llama(num_hidden_layers=5).save_pretrained(tmp_path)
    change_config(tmp_path, num_key_value_heads=4)
    problems = found(tmp_path)
    assert len(problems) == 2  # k and v
    assert all("layers.0." in problem and "4 more like it" in problem for problem in problems)


def test_another_dtype_than_the_configs_is_noted(untied):
    change_tensors(untied, lambda tensors: tensors.update({name: t.bfloat16() for name, t in tensors.items()}))
    report = verify_checkpoint(untied, "structure")
    assert report.ok
    assert any("says float32, the tensors are bfloat16" in note for note in report.notes)


def test_a_layout_that_is_not_known_is_noted_and_not_judged(untied):
    change_config(untied, model_type="gpt2", vocab_size=1)
    report = verify_checkpoint(untied, "structure")
    assert report.ok
    assert any("layout of 'gpt2'" in note for note in report.notes)


@pytest.mark.parametrize("content", ["[]", "null", '{"model_type": 3}', '{"model_type": "llama"}', "{}"])
def test_a_config_that_says_little_stops_nothing(content, untied):
    (untied / "config.json").write_text(content)
    problems = found(untied)
    assert problems == ([] if content.startswith("{") else ["config.json: is not a JSON object"])


def test_a_quantised_model_is_judged_by_what_is_not_packed(untied, tmp_path):
    quantised = BitsAndBytesConfig(load_in_4bit=True)
    model = AutoModelForCausalLM.from_pretrained(untied, quantization_config=quantised)
    model.save_pretrained(tmp_path / "packed")
    assert found(tmp_path / "packed") == []
    change_config(tmp_path / "packed", vocab_size=65)
    assert any("embed_tokens" in problem for problem in found(tmp_path / "packed"))


def tiny_config(model_type):
    from transformers import CONFIG_MAPPING

    small = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 10,
        "vocab_size": 56,
        "num_experts": 4,
        "num_local_experts": 4,
        "n_routed_experts": 4,
        "moe_intermediate_size": 12,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
    }
    made = CONFIG_MAPPING[model_type]
    known = {key: value for key, value in small.items() if hasattr(made(), key)}
    try:
        return made(**known)
    except Exception:  # a head_dim that is not hidden_size / heads is not for all
        return made(**{key: value for key, value in known.items() if key != "head_dim"})


def check_type(model_type, directory):
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(tiny_config(model_type)).save_pretrained(directory)
    report = verify_checkpoint(directory, "structure")
    assert report.ok, [str(problem) for problem in report.problems]
    assert not any("layout" in note for note in report.notes)
    change_config(directory, vocab_size=57)
    assert any("asks for [57, 24]" in problem for problem in found(directory))


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "phi3"])
def test_models_of_the_common_types_are_never_refused(model_type, tmp_path):
    assert model_type in LLAMA_LIKE
    check_type(model_type, tmp_path)


@pytest.mark.trials
@pytest.mark.parametrize("model_type", sorted(LLAMA_LIKE))
def test_models_of_all_known_types_are_never_refused(model_type, tmp_path):
    check_type(model_type, tmp_path)


@pytest.mark.parametrize("odd", ["mlp.experts.x.up", "mlp.experts.99999999999.up"])
def test_a_damaged_number_of_an_expert_is_a_missing_one_and_no_crash(odd):
    whole = {f"mlp.experts.{number}.up" for number in range(2)}
    sizes = SimpleNamespace(experts=None)
    found = dict(_unlike_the_others({0: whole, 1: {odd}}, sizes))
    assert "mlp.experts.0.up" in found[1]


@pytest.mark.parametrize(
    ("key", "value"),
    [("hidden_size", "abc"), ("hidden_size", 32.5), ("num_attention_heads", 0), ("num_hidden_layers", [2]),
     ("vocab_size", None), ("intermediate_size", True)],
)  # fmt: skip
def test_sizes_that_no_model_can_have_are_named(key, value, untied):
    change_config(untied, **{key: value})
    assert any(f"{key} is {value!r}, not a whole number above 0" in problem for problem in found(untied))
