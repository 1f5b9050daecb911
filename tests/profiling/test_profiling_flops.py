"""The formulas against hand counts, and against what a trace of a real step says was multiplied."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from tiny_models import make_tiny_llama
from torch.profiler import ProfilerActivity, profile

from hf_recipes.core.flops import Work, causal_pairs, training_flops
from hf_recipes.core.matmul_weights import matmul_weights
from hf_recipes.profiling.matmuls import product_flops
from hf_recipes.profiling.trace import read_trace

# A layer of the tiny Llama: q and o 32×32, k and v 16×32, gate, up and down 64×32.
LAYER = 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32
HEAD = 512 * 32


def lora(model, layers=None):
    targets = ["q_proj", "v_proj"]
    return get_peft_model(model, LoraConfig(r=4, target_modules=targets, layers_to_transform=layers))


def test_full_fine_tuning_is_6n():
    weights = matmul_weights(make_tiny_llama())
    assert (weights.forward, weights.head) == (2 * LAYER, HEAD)
    assert weights.input_gradient == weights.weight_gradient == weights.forward
    assert training_flops(weights, Work(10, 10, 0)) == 6 * 10 * (2 * LAYER + HEAD)


def test_lora_is_4n_but_for_what_stands_before_the_first_adapter():
    weights = matmul_weights(lora(make_tiny_llama()))
    adapters = 2 * (4 * 32 + 32 * 4 + 4 * 32 + 16 * 4)  # A and B of q and v, in two layers
    assert weights.forward == 2 * LAYER + adapters
    assert weights.weight_gradient == adapters
    # The first q_proj and the A beside it get an input that needs no gradient.
    assert weights.input_gradient == weights.forward - 32 * 32 - 4 * 32
    assert (weights.head_input_gradient, weights.head_weight_gradient) == (True, False)
    assert (weights.attention_layers, weights.attention_gradient_layers) == (2, 2)


def test_gradients_stop_below_the_first_trained_layer():
    weights = matmul_weights(lora(make_tiny_llama(), layers=[1]))
    assert weights.attention_gradient_layers == 1
    assert weights.input_gradient < LAYER + 1000


@given(st.lists(st.integers(1, 300), max_size=8))
def test_causal_pairs_are_a_triangle_each(lengths):
    assert causal_pairs(lengths) == sum(sum(range(1, length + 1)) for length in lengths)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_flops_grow_in_proportion_to_work(tokens, supervised):
    weights = matmul_weights(_MODEL)
    once = training_flops(weights, Work(tokens, supervised, tokens))
    assert training_flops(weights, Work(2 * tokens, 2 * supervised, 2 * tokens)) == pytest.approx(2 * once)


_MODEL = make_tiny_llama()


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_formula_is_what_a_step_multiplies(method, tmp_path):
    model = make_tiny_llama() if method == "full" else lora(make_tiny_llama())
    ids = torch.randint(0, 512, (2, 16))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    ops = read_trace(tmp_path / "trace.json").ops
    products = sum(product_flops(op)[0] for op in ops if op.name in ("aten::mm", "aten::addmm"))
    weights = matmul_weights(model)
    # Here the head meets all 32 positions. Rotary angles are a bmm, attention a kernel of its own: left out.
    asked = training_flops(weights, Work(tokens=32, supervised=32, pairs=0))
    if method == "full":
        assert products == asked
    else:  # k_proj and v_proj of the first layer, and v's A, are counted though their input needs no gradient
        assert products == asked - 2 * 32 * (2 * 16 * 32 + 4 * 32)
    attention = sum(product_flops(op)[0] for op in ops if "flash_attention" in op.name)
    # 2 rows · 2 layers · width 32 · 16² / 2 causal pairs: 2 products forward, 5 backward, 2 FLOPs each.
    assert attention == 2 * 2 * 32 * 128 * (2 + 5) * 2
