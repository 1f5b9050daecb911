"""Geometry read from model classes: exact counts, parts, what is trained and what bitsandbytes would quantise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.plan.geometry import PARTS
from hf_recipes.plan.read_geometry import read_geometry

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "num_local_experts": 4}
QWEN_MOE = {
    **LLAMA,
    "model_type": "qwen2_moe",
    "architectures": ["Qwen2MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 64,
}
GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 512,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
# Published counts (model cards; the sums are also what the formulas of the papers give).
KNOWN = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-2b": 2_506_172_416,
}
SHARED = Path(__file__).resolve().parents[3] / "shared" / "configs"


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, QWEN_MOE, GPT2], ids=lambda config: config["model_type"])
def test_counts_are_those_of_the_real_model(config: dict[str, Any]) -> None:
    import transformers

    values = {key: value for key, value in config.items() if key != "model_type"}
    real = getattr(transformers, config["architectures"][0])(
        transformers.AutoConfig.for_model(config["model_type"], **values)
    )
    geometry = read_geometry(config)
    assert geometry.total == sum(each.numel() for each in real.parameters())
    assert {tensor.part for tensor in geometry.tensors} <= set(PARTS)
    assert not [tensor.name for tensor in geometry.tensors if tensor.part == "other"]


@pytest.mark.skipif(not SHARED.is_dir(), reason="the public geometries are not shipped")
@pytest.mark.parametrize("name", KNOWN)
def test_known_counts(name: str) -> None:
    assert read_geometry(SHARED / f"{name}.json").total == KNOWN[name]


def test_numbers_of_a_grouped_query_model() -> None:
    geometry = read_geometry(LLAMA)
    assert (geometry.heads, geometry.kv_heads, geometry.head_dim) == (4, 2, 8)
    assert (geometry.layers, geometry.hidden_size, geometry.intermediate_size) == (3, 32, 80)
    assert geometry.gated_mlp and not geometry.tied and geometry.plain_head
    assert read_geometry({**LLAMA, "tie_word_embeddings": True}).tied


def test_tied_weights_are_counted_once_as_embeddings() -> None:
    tied = read_geometry({**LLAMA, "tie_word_embeddings": True})
    assert read_geometry(LLAMA).total - tied.total == 512 * 32
    assert sum(tensor.count for tensor in tied.tensors if tensor.part == "embeddings") == 512 * 32


def test_a_shared_expert_is_no_routed_expert() -> None:
    geometry = read_geometry(QWEN_MOE)
    experts = sum(tensor.count for tensor in geometry.tensors if tensor.part == "experts")
    assert experts == 3 * 4 * 3 * 32 * 48  # layers, experts, three matrices
    assert (geometry.expert_size, geometry.shared_expert_size, geometry.experts_per_token) == (48, 64, 2)


def test_soft_capped_logits_are_no_plain_head() -> None:
    config = {**LLAMA, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "head_dim": 8}
    assert not read_geometry(config).plain_head


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL], ids=["llama", "mixtral"])
def test_linear_is_what_transformers_replaces_by_four_bit_layers(config: dict[str, Any]) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    import torch
    import transformers
    from transformers.integrations.bitsandbytes import replace_with_bnb_linear
    from transformers.quantizers.base import get_keys_to_not_convert

    values = {key: value for key, value in config.items() if key != "model_type"}
    with torch.device("meta"):
        model = getattr(transformers, config["architectures"][0])(
            transformers.AutoConfig.for_model(config["model_type"], **values)
        )
    settings = transformers.BitsAndBytesConfig(load_in_4bit=True)
    replace_with_bnb_linear(model, get_keys_to_not_convert(model), quantization_config=settings)
    replaced = {name for name, module in model.named_modules() if isinstance(module, bnb.nn.Linear4bit)}
    told = {tensor.name.removesuffix(".weight") for tensor in read_geometry(config).tensors if tensor.linear}
    assert told == replaced and replaced


def _methods() -> dict[str, Any]:
    from hf_recipes.models.methods.bottleneck import BottleneckSettings, attach_bottleneck
    from hf_recipes.models.methods.ia3 import IA3Settings, attach_ia3
    from hf_recipes.models.methods.lora import LoraSettings, attach_lora
    from hf_recipes.models.methods.partial import PartialSettings, attach_partial
    from hf_recipes.models.methods.prefix import PrefixSettings, attach_prefix

    return {
        "lora": lambda model: attach_lora(model, LoraSettings(r=4)),
        "dora": lambda model: attach_lora(model, LoraSettings(r=4, use_dora=True)),
        "saved": lambda model: attach_lora(model, LoraSettings(r=4, modules_to_save=["lm_head"])),
        "ia3": lambda model: attach_ia3(model, IA3Settings()),
        "bottleneck": lambda model: attach_bottleneck(model, BottleneckSettings(size=8)),
        "prefix": lambda model: attach_prefix(model, PrefixSettings()),
        "partial": lambda model: attach_partial(model, PartialSettings(1)),
    }


@pytest.mark.parametrize("method", ["lora", "dora", "saved", "ia3", "bottleneck", "prefix", "partial"])
def test_methods_attach_without_weights_as_they_do_to_a_real_model(method: str) -> None:
    import transformers

    attach = _methods()[method]
    values = {key: value for key, value in LLAMA.items() if key != "model_type"}
    real = attach(transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)))
    geometry = read_geometry(LLAMA, attach)
    expected = {name: (tuple(each.shape), each.requires_grad) for name, each in real.named_parameters()}
    assert {each.name: (each.shape, each.trained) for each in geometry.tensors} == expected
    # The base's linear layers stay what they are under the adapter.
    assert [each.shape for each in geometry.tensors if each.linear] == [
        each.shape for each in read_geometry(LLAMA).tensors if each.linear
    ]


def test_a_directory_is_read_and_what_is_no_config_is_said(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, "quantization_config": {"quant_method": "gptq"}}))
    assert read_geometry(tmp_path).total == read_geometry(LLAMA).total
    with pytest.raises(UserError, match="no such kind"):
        read_geometry({"model_type": "no such kind"})
    with pytest.raises(UserError, match="model_type"):
        read_geometry({"hidden_size": 3})
    with pytest.raises(UserError, match="cannot be read"):
        read_geometry(tmp_path / "nowhere")
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(UserError, match="no config"):
        read_geometry(tmp_path / "list.json")
