"""The relative cost of a step: what must cost more, and by how much where it is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from strategy_helpers import H100, RTX_4090, llama, node

from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.candidates import CHECKPOINTINGS
from hf_recipes.plan.strategy.names import layout_of
from hf_recipes.plan.strategy.step_cost import step_cost, work_of
from hf_recipes.plan.strategy.variants import lora_settings, qlora_settings, with_lora

FULL = TrainingSettings(method="full", weights_dtype="float32", micro_batch=8, tokens=2048)
SEVEN_B = llama()
LORA_7B = with_lora(SEVEN_B)


def cost(strategy="single", machines=H100, geometry=SEVEN_B, **more):
    settings = replace(FULL, **more)
    return step_cost(geometry, settings, layout_of(strategy, machines.ranks, machines.nodes), machines)


def test_compute_is_six_flops_a_parameter_and_token():
    # 7B, 8 × 2048 tokens: 6 · 6.607e9 (without the embedding, which is looked up) · 16384 = 6.495e14, and attention
    # 3 · 2 · 2048 · 4096 · 32 · 16384 = 2.64e13; over 989e12 · 0.6 · 16384 / (16384 + 295.2) = 5.829e14 FLOP/s: that
    # is 1.160 s, and the optimizer's 6.738e9 · 28 / 3.35e12 = 0.0563 s.
    assert cost().compute == pytest.approx(1.160 + 0.0563, rel=2e-3)


def test_lora_needs_two_thirds():
    full = cost()
    lora = step_cost(LORA_7B, replace(lora_settings(FULL)), Layout(), H100)
    assert lora.compute / full.compute == pytest.approx(2 / 3, abs=0.04)  # the optimizer's pass falls away too


def test_computing_everything_again_is_a_third_more_of_a_full_step():
    costs = [cost(checkpointing=kind) for kind in CHECKPOINTINGS]
    seconds = [each.seconds for each in costs]
    assert seconds == sorted(seconds)
    step = costs[0].compute - 0.0563
    assert costs[5].recomputation / step == pytest.approx(1 / 3, rel=0.01)
    assert seconds[6] > seconds[5]  # the host's share comes on top


def test_small_micro_batches_cost_more_for_the_same_batch():
    seconds = [cost(micro_batch=size, accumulation=16 // size, tokens=256).seconds for size in (16, 8, 4, 2, 1)]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 1.5 * seconds[0]


def test_sharing_more_talks_more():
    eight = node(H100, 8)
    talk = {name: cost(name, eight, accumulation=4).communication for name in ("ddp", "zero1", "zero2", "fsdp")}
    assert talk["zero2"] < talk["fsdp"]
    assert talk["zero1"] < talk["zero2"]
    assert cost("fsdp", node(RTX_4090, 8)).communication > 5 * cost("fsdp", eight).communication


def test_an_all_reduce_on_pcie_takes_its_bytes_over_the_link():
    # DDP, fp32 gradients: 2 · 7/8 · 6.738e9 · 4 B = 4.717e10 B over 0.75 · 25e9 / 2 = 9.375e9 B/s: 5.03 s, of which the
    # computation hides 85 % of its own length.
    slow = node(RTX_4090, 8)
    step = cost("ddp", slow)
    computing = step.compute - SEVEN_B.trained * 28 / slow.bandwidth
    assert step.communication == pytest.approx(max(0.0, 5.03 - computing) + 0.15 * min(5.03, computing), rel=0.01)


def test_copies_across_nodes_cost_less_than_shards_across_a_slow_network():
    slow = node(H100, 8, 4, network=12.5e9)
    assert cost("hsdp", slow).communication < 0.6 * cost("fsdp", slow).communication


def test_offloading_costs_transfers_and_the_cpus_time():
    lone = cost("zero2_offload")
    # At least the CPU's Adam: 6.738e9 · 28 B at 100 GB/s, and 2 · 13.48e9 B over 0.75 · 55e9 B/s.
    assert lone.offload == pytest.approx(1.887 + 0.653, rel=0.01)
    assert cost("zero3_offload_all").offload > lone.offload


def test_four_bit_weights_are_gathered_as_they_are():
    quantised = work_of(LORA_7B, qlora_settings(FULL)).gathered_bytes
    linear = sum(tensor.count for tensor in SEVEN_B.tensors if tensor.linear)
    rest = LORA_7B.total - linear
    assert quantised == pytest.approx(0.516 * linear + 2 * rest)


def test_degrees_cut_the_work_and_a_pipeline_waits():
    machines = node(H100, 8, 2)
    whole = step_cost(SEVEN_B, FULL, Layout(16, 2, "fsdp"), machines)
    tensor = step_cost(SEVEN_B, FULL, Layout(16, 2, "fsdp", tensor=8), machines)
    assert tensor.compute == pytest.approx(whole.compute / 8, rel=0.1)
    pipeline = step_cost(SEVEN_B, replace(FULL, accumulation=4), Layout(16, 2, "fsdp", pipeline=2), machines)
    assert pipeline.bubble > 0


def test_experts_count_as_far_as_a_token_meets_them():
    from hf_recipes.plan.geometry import TensorShape

    expert = TensorShape("model.layers.0.mlp.experts.up", (64, 4096, 1024), "experts", 0)
    sparse = replace(SEVEN_B, tensors=(*SEVEN_B.tensors, expert), experts=64, experts_per_token=4)
    added = step_cost(sparse, FULL, Layout(), H100).compute - step_cost(SEVEN_B, FULL, Layout(), H100).compute
    share = expert.count / SEVEN_B.total
    # 4 of 64 experts in the products, all of them in the optimizer.
    assert added == pytest.approx(1.16 * share / 16 + 0.0563 * share, rel=0.1)
