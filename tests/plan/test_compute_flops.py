"""FLOPs from shapes: known counts, and the same as what is counted on live models."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from llama_geometry import llama, llama_2_7b
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from tiny_models import make_tiny_llama
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hf_recipes.core.flops import Work, training_flops
from hf_recipes.core.matmul_weights import matmul_weights
from hf_recipes.models.counts import count_parameters
from hf_recipes.plan.compute import arithmetic, forward_flops, matmul_weights_of, rule_of_thumb, work_of
from hf_recipes.plan.read_geometry import read_geometry
from hf_recipes.plan.settings import TrainingSettings

SETTINGS = TrainingSettings()
YEAR = 365.25 * 24 * 3600


def lora(**options):
    return lambda model: get_peft_model(model, LoraConfig(r=4, **{"target_modules": ["q_proj", "v_proj"], **options}))


def last_layer(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad = ".layers.1." in name
    return model


def moe():
    from transformers import Qwen3MoeConfig

    return Qwen3MoeConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=16,
        num_experts=8,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        mlp_only_layers=[0],
    )


def test_seven_billion_parameters_on_a_trillion_tokens():
    flops = rule_of_thumb(7e9, 1e12)
    assert flops == 4.2e22
    # An A100 at 50 to 60 % of 312 TFLOP/s: about 7.4 years on one, 0.9 on eight.
    assert flops / (0.577 * 312e12) / YEAR == pytest.approx(7.4, abs=0.05)
    assert flops / (8 * 0.577 * 312e12) / YEAR == pytest.approx(0.92, abs=0.02)
    assert rule_of_thumb(7e9, 1e12, frozen=True) == 2.8e22
    assert rule_of_thumb(7e9, 1e12, frozen=True, recomputed=True) == 4.2e22


def test_a_7b_model_from_its_shapes():
    geometry = llama_2_7b()
    assert geometry.total == 6_738_415_616
    weights = matmul_weights_of(geometry)
    # 32 layers of 4 · 4096² + 3 · 4096 · 11008; the head apart, the embeddings multiply nothing.
    assert weights.forward == 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert weights.head == 32000 * 4096
    once = arithmetic(geometry, SETTINGS, Work(1000, 1000, 0))
    assert once.useful == 6 * 1000 * (geometry.total - 32000 * 4096 - 65 * 4096)
    assert once.again == 0


def test_lora_needs_two_thirds():
    geometry = llama_2_7b(lora_rank=8)
    assert geometry.trained == 4_194_304
    full, adapted = (arithmetic(each, SETTINGS, Work(1000, 1000, 0)) for each in (llama_2_7b(), geometry))
    assert adapted.useful / full.useful == pytest.approx(2 / 3, abs=0.002)
    assert adapted.weight_gradient == 2 * 1000 * 4_194_304


CASES = {
    "full": (lambda: make_tiny_llama().config, None),
    "untied": (lambda: make_tiny_llama(tied=False).config, None),
    "lora": (lambda: make_tiny_llama().config, lora()),
    "lora on one layer": (lambda: make_tiny_llama().config, lora(layers_to_transform=[1])),
    "lora everywhere": (lambda: make_tiny_llama(tied=False).config, lora(target_modules="all-linear")),
    "partial": (lambda: make_tiny_llama(tied=False).config, last_layer),
    "experts": (moe, None),
    "lora on experts' attention": (moe, lora()),
}


@pytest.mark.parametrize("case", CASES)
def test_shapes_say_what_a_live_model_says(case):
    make_config, attach = CASES[case]
    config = make_config()
    live = AutoModelForCausalLM.from_config(config)
    live = attach(live) if attach else live
    geometry = read_geometry(config, attach)
    assert matmul_weights_of(geometry) == matmul_weights(live)
    assert (geometry.trained, geometry.total) == count_parameters(live)


def test_a_quantised_base_counts_as_what_it_stands_for(tmp_path):
    base = make_tiny_llama(tied=False, hidden_size=64, intermediate_size=128)
    base.save_pretrained(tmp_path)
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True)
    live = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=four_bits, dtype=torch.float32)
    live = lora()(live)
    assert any(getattr(parameter, "quant_state", None) for parameter in live.parameters())
    geometry = read_geometry(base.config, lora())
    assert matmul_weights_of(geometry) == matmul_weights(live)
    assert (geometry.trained, geometry.total) == count_parameters(live)


def test_prefixes_are_read_by_every_layer_and_multiply_nothing():
    def attach(model):
        return get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))

    config = make_tiny_llama().config
    weights = matmul_weights_of(read_geometry(config, attach))
    assert weights.forward == matmul_weights_of(read_geometry(config)).forward
    assert (weights.weight_gradient, weights.attention_gradient_layers) == (0, 2)
    assert weights.input_gradient == weights.forward


@examples(deadline=None, max_examples=30)
@given(
    st.integers(1, 5000),
    st.floats(0, 1),
    st.sampled_from([0, 4]),
    st.sampled_from(["off", "every_2", "selective", "all", "host"]),
)
def test_phases_add_up_to_what_core_counts(tokens, share, rank, checkpointing):
    geometry = llama(64, 128, 4, 4, 2, 512, lora_rank=rank)
    work = work_of([tokens, 3], share)
    found = arithmetic(geometry, replace(SETTINGS, checkpointing=checkpointing), work)
    assert found.useful == pytest.approx(training_flops(matmul_weights_of(geometry), work))
    assert found.computed == found.useful + found.again
    assert found.times(3).computed == pytest.approx(3 * found.computed)
    assert (found.again == 0) == (checkpointing == "off")


def test_recomputation_is_one_more_forward_pass():
    geometry, work = llama_2_7b(), Work(1000, 0, 10_000)
    of = {
        name: arithmetic(geometry, replace(SETTINGS, checkpointing=name), work).again
        for name in ("off", "every_4", "every_2", "selective", "all")
    }
    assert of["all"] == forward_flops(geometry, work) == 2 * 1000 * 32 * 202_375_168 + 4 * 10_000 * 4096 * 32
    assert of["every_4"] == of["all"] / 4 and of["every_2"] == of["all"] / 2
    assert of["all"] - of["selective"] == 4 * 10_000 * 4096 * 32  # attention is kept
    upper_half = replace(
        geometry,
        tensors=tuple(replace(each, trained=each.layer is not None and each.layer >= 16) for each in geometry.tensors),
    )
    # No gradient flows through the lower half, so nothing there is computed again.
    again = arithmetic(upper_half, replace(SETTINGS, checkpointing="all"), work).again
    assert again == of["all"] / 2


def test_what_losses_compute_beyond_labels():
    geometry, work = llama(64, 128, 2, 4, 2, 512, lora_rank=4), Work(100, 30, 0)
    head = 512 * 64
    extra = {
        loss: arithmetic(geometry, replace(SETTINGS, loss=loss), work).again for loss in ("chunked", "full", "fused")
    }
    # Full logits: 70 positions without a label, forward and for the input's gradient.
    assert extra == {"chunked": 0, "full": 2 * 70 * head * 2, "fused": 0}
    # TRL's chunks: logits once more.
    assert arithmetic(geometry, replace(SETTINGS, loss="trl_chunked"), work).again == 2 * 30 * head


def test_work_of_samples():
    assert work_of([3, 5], 0.5) == Work(8, 4, 6 + 15)
