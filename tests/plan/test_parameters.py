"""Counts by part, of what is trained and of what a token meets."""

from __future__ import annotations

import pytest

from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.parameters import active_parameters, count_parameters
from hf_recipes.plan.read_geometry import read_geometry

LLAMA_2_7B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "tie_word_embeddings": False,
}
MIXTRAL_8X7B = {
    **LLAMA_2_7B,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def test_llama_2_7b_by_part() -> None:
    counts = count_parameters(read_geometry(LLAMA_2_7B))
    assert counts.total == 6_738_415_616
    assert counts.by_part == {
        "embeddings": 32000 * 4096,
        "attention": 32 * 4 * 4096 * 4096,
        "mlp": 32 * 3 * 4096 * 11008,
        "norms": 65 * 4096,
        "head": 32000 * 4096,
    }
    assert counts.trained == counts.active == counts.total and counts.trained_share == 1


# Two matrices of (r × 4096) for each of 2 projections in 32 layers: 2 · 4096 · r · 64. The share is 0.06 %, not 1 %.
@pytest.mark.parametrize(("r", "trained"), [(8, 4_194_304), (16, 8_388_608)])
def test_lora_on_queries_and_values_of_7b(r: int, trained: int) -> None:
    from hf_recipes.models.methods.lora import LoraSettings, attach_lora

    settings = LoraSettings(r=r, target_modules=["q_proj", "v_proj"])
    counts = count_parameters(read_geometry(LLAMA_2_7B, lambda model: attach_lora(model, settings)))
    assert counts.trained == trained
    assert counts.trained_by_part == {"adapter": trained}
    assert counts.trained_share == pytest.approx(trained / (6_738_415_616 + trained))


def test_mixtral_has_46_7_billion_of_which_a_token_meets_12_9() -> None:
    counts = count_parameters(read_geometry(MIXTRAL_8X7B))
    assert counts.total == 46_702_792_704
    # Two of eight experts: 46.70 − 45.10 + 45.10/4 billion.
    assert counts.active == 12_879_925_248


def test_active_equals_total_without_experts() -> None:
    tensors = (TensorShape("w", (3, 5), "mlp", 0), TensorShape("e", (7, 5), "embeddings", None, trained=False))
    geometry = Geometry("x", tensors, 5, 3, 1, 1, 1, 5, 7, gated_mlp=False, tied=True)
    assert active_parameters(geometry) == geometry.total == 50
    assert count_parameters(geometry).trained == 15
