"""Which layouts are considered, and how a global batch is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategy_helpers import A100_40, H100, RTX_4090, llama, node, plain_estimate

from hf_recipes.core.errors import UserError
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import TrainingSettings
from hf_recipes.plan.strategy.candidates import (
    ALL_OPEN,
    CHECKPOINTINGS,
    Wishes,
    launched_layouts,
    planned_layouts,
    reachable_batch,
    ways,
)
from hf_recipes.plan.strategy.choose import choose_strategy
from hf_recipes.plan.strategy.names import ALL_STRATEGIES, STRATEGIES, Sizes, describe, layout_of, strategy_of
from hf_recipes.recipe.key_table import load_key_table

FULL = TrainingSettings(method="full", weights_dtype="float32")


def names(settings, machines, wishes=ALL_OPEN):
    return [strategy_of(layout) for layout in launched_layouts(settings, machines, wishes)]


def test_one_device_may_offload_and_shares_nothing():
    assert names(FULL, H100) == ["single", "zero2_offload", "zero3_offload_all"]
    assert names(FULL, H100, Wishes(offload=False)) == ["single"]


def test_several_devices_share_more_and_more():
    order = ["ddp", "zero1", "zero2", "fsdp", "zero3", "zero2_offload", "zero3_offload", "fsdp_offload"]
    assert names(FULL, node(H100, 8)) == [*order, "zero3_offload_all"]
    with_copies = [*order[:3], "hsdp", *order[3:], "zero3_offload_all"]
    assert names(FULL, node(H100, 8, 2)) == with_copies


def test_an_eight_bit_base_is_not_sharded_nor_are_bitsandbytes_optimizers():
    eight = replace(FULL, quantization="int8")
    assert names(eight, node(H100, 8)) == ["ddp", "zero1", "zero2", "zero2_offload"]
    on_device = replace(FULL, optimizer="paged_adamw_8bit")
    assert names(on_device, node(H100, 8)) == ["ddp", "zero1", "zero2", "zero3"]
    assert "fsdp" in names(replace(FULL, optimizer="adamw_torch_8bit"), node(H100, 8))


def test_the_recipes_own_degrees_are_kept():
    (layout,) = launched_layouts(FULL, node(H100, 8), Wishes("tp", Sizes(tensor=2)))
    assert layout == Layout(8, 1, "fsdp", tensor=2)
    (layout,) = launched_layouts(FULL, node(H100, 8), Wishes("pp", Sizes(pipeline=4)))
    assert (layout.pipeline, layout.data_parallel) == (4, 2)
    for wishes in (Wishes("tp", Sizes(tensor=3)), Wishes("fsdp", Sizes(tensor=2)), Wishes(sizes=Sizes(tensor=2))):
        with pytest.raises(UserError, match="tensor_parallel_size"):
            launched_layouts(FULL, node(H100, 8), wishes)


def test_a_pipeline_gets_as_many_micro_batches_as_stages():
    found = ways(FULL, layout_of("pp", 4, sizes=Sizes(pipeline=4)), 16, ALL_OPEN)
    assert {(one.settings.micro_batch, one.settings.accumulation) for one in found} == {(1, 16), (2, 8), (4, 4)}


@pytest.mark.parametrize(
    ("strategy", "change", "told"),
    [
        ("pp", {"method": "qlora", "quantization": "nf4"}, "strategy: pp trains method: full or lora"),
        ("fsdp", {"quantization": "int8"}, "strategy: fsdp cannot shard a base in 8 bits: write another one, or auto"),
        ("fsdp", {"optimizer": "adamw_8bit"}, "optim: adamw_8bit does not take"),
        ("zero2_offload", {"optimizer": "sgd"}, "which optim: sgd is not"),
    ],
)
def test_a_wish_that_cannot_train_the_job_is_refused(strategy, change, told):
    with pytest.raises(UserError, match=told):
        names(replace(FULL, **change), node(H100, 8), Wishes(strategy=strategy))


def test_the_recipe_knows_the_strategies():
    assert set(load_key_table()["strategy"].choices) == {"auto", *ALL_STRATEGIES}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("ranks", "nodes"), [(1, 1), (2, 1), (8, 1), (16, 2)])
def test_every_strategy_has_its_layout_and_its_name_back(strategy, ranks, nodes):
    try:
        layout = layout_of(strategy, ranks, nodes)
    except UserError as error:
        assert "strategy:" in str(error)
        return
    assert layout.ranks == ranks
    assert layout.nodes == nodes
    assert strategy_of(layout) == strategy
    assert describe(layout)


@pytest.mark.parametrize(
    ("strategy", "ranks", "nodes", "told"),
    [
        ("zero4", 8, 1, "did you mean 'zero"),
        ("single", 8, 1, "write ddp, or auto"),
        ("fsdp", 1, 1, "needs several devices"),
        ("hsdp", 8, 1, "needs several nodes"),
        ("ddp", 9, 2, "do not stand evenly in 2 nodes"),
    ],
)
def test_a_strategy_that_cannot_be_is_told(strategy, ranks, nodes, told):
    with pytest.raises(UserError, match=told):
        layout_of(strategy, ranks, nodes)


def test_tensor_parallelism_stays_in_the_node_needs_the_link_and_divides_the_heads():
    grouped = llama(kv_heads=4, heads=32)
    planned = list(planned_layouts(grouped, FULL, node(H100, 8, 2, network=50e9)))
    assert [layout.tensor for layout in planned] == [2, 4]  # 8 does not divide 4 key-value heads
    assert all(layout.ranks == 16 and layout.data_parallel * layout.tensor == 16 for layout in planned)
    assert not list(planned_layouts(grouped, FULL, node(RTX_4090, 8)))


def test_context_parallelism_is_for_long_rows():
    long = replace(FULL, tokens=32_768)
    planned = list(planned_layouts(llama(), long, node(RTX_4090, 4)))
    assert [layout.context for layout in planned] == [2, 4]


def test_pipelines_are_for_several_nodes_on_a_slow_network():
    slow = list(planned_layouts(llama(layers=30), FULL, node(A100_40, 4, 4)))
    pipelines = {layout.pipeline for layout in slow}
    assert pipelines == {1, 2}  # 4 does not divide 30 layers
    assert all(layout.data_parallel >= 1 for layout in slow)
    fast = planned_layouts(llama(layers=30), FULL, node(A100_40, 4, 4, network=100e9))
    assert {layout.pipeline for layout in fast} == {1}
    assert {layout.pipeline for layout in planned_layouts(llama(), FULL, node(A100_40, 8))} == {1}


def test_of_the_planned_layouts_pipelines_beside_fsdp_alone_have_no_name():
    slow = node(A100_40, 4, 4)
    for layout in planned_layouts(llama(), replace(FULL, tokens=32_768), slow):
        name = "pp" if layout.pipeline > 1 else "cp" if layout.context > 1 else "tp"
        beside_fsdp = layout.pipeline > 1 and layout.sharding == "fsdp"
        assert strategy_of(layout) == (None if beside_fsdp else name)
        assert "parallelism" in describe(layout)


def test_tensor_parallelism_is_planned_for_what_it_trains():
    def tensors(settings):
        return {layout.tensor for layout in planned_layouts(llama(), settings, node(H100, 8))}

    assert tensors(FULL) == {2, 4, 8}
    assert tensors(replace(FULL, method="lora")) == {8}
    assert not tensors(replace(FULL, method="qlora", quantization="nf4"))


@pytest.mark.parametrize(
    ("strategy", "ranks", "nodes", "sizes", "layout"),
    [
        ("tp", 8, 1, Sizes(), Layout(8, 1, "none", tensor=8)),
        ("tp", 8, 1, Sizes(tensor=2), Layout(8, 1, "fsdp", tensor=2)),
        ("tp", 16, 2, Sizes(), Layout(16, 2, "fsdp", tensor=8)),
        ("cp", 8, 1, Sizes(context=4), Layout(8, 1, "fsdp", context=4)),
        ("cp", 8, 2, Sizes(context=8), Layout(8, 2, "fsdp", context=8)),
        ("pp", 4, 1, Sizes(), Layout(4, 1, "none", pipeline=4)),
        ("pp", 4, 1, Sizes(pipeline=2), Layout(4, 1, "ddp", pipeline=2)),
        ("pp", 8, 1, Sizes(pipeline=2, tensor=2), Layout(8, 1, "ddp", tensor=2, pipeline=2)),
        ("pp", 8, 1, Sizes(tensor=2), Layout(8, 1, "none", tensor=2, pipeline=4)),
    ],
)
def test_sizes_make_a_layout_and_what_remains_is_data_parallel(strategy, ranks, nodes, sizes, layout):
    assert layout_of(strategy, ranks, nodes, sizes) == layout
    assert strategy_of(layout) == strategy


@pytest.mark.parametrize(
    ("strategy", "ranks", "nodes", "sizes", "told"),
    [
        ("tp", 8, 1, Sizes(tensor=3), "tensor_parallel_size: 3 does not cut 8 ranks of a node .*: give 2 or 4 or 8"),
        ("tp", 8, 1, Sizes(tensor=1), "tensor_parallel_size: 1 does not cut"),
        ("tp", 16, 2, Sizes(tensor=16), "tensor_parallel_size: 16 does not cut 8 ranks of a node"),
        ("pp", 4, 1, Sizes(pipeline=3), "pipeline_parallel_size: 3 does not cut 4 groups of ranks .*: give 2 or 4"),
        ("pp", 2, 1, Sizes(tensor=2), "pipeline_parallel_size: 1 does not cut .*: give more ranks"),
        ("cp", 4, 1, Sizes(tensor=2), "tensor_parallel_size is for strategy: tp or pp, and the recipe's is cp"),
        ("ddp", 4, 1, Sizes(pipeline=2), "pipeline_parallel_size is for strategy: pp, and the recipe's is ddp"),
        ("tp", 1, 1, Sizes(), "strategy: tp needs several devices"),
    ],
)
def test_sizes_that_do_not_fit_are_told(strategy, ranks, nodes, sizes, told):
    with pytest.raises(UserError, match=told):
        layout_of(strategy, ranks, nodes, sizes)


@given(wanted=st.integers(1, 4096), ranks=st.integers(1, 64), micro=st.none() | st.integers(1, 16))
def test_the_nearest_batch_is_a_multiple_and_nothing_is_nearer(wanted, ranks, micro):
    unit = ranks * (micro or 1)
    reached = reachable_batch(wanted, ranks, micro)
    assert reached % unit == 0
    assert reached >= unit
    assert abs(reached - wanted) <= min(abs(max(unit, wanted // unit * unit + shift) - wanted) for shift in (0, unit))


@given(batch=st.integers(1, 512), ranks=st.sampled_from([1, 2, 3, 4, 8, 16]))
def test_all_ways_keep_the_global_batch(batch, ranks):
    layout = Layout(ranks, 1, "ddp" if ranks > 1 else "none")
    found = ways(FULL, layout, batch, ALL_OPEN)
    assert {way.global_batch for way in found} == {reachable_batch(batch, ranks)}
    assert {way.settings.checkpointing for way in found} == set(CHECKPOINTINGS)
    assert min(way.settings.micro_batch for way in found) == 1


def test_a_change_of_ranks_keeps_the_global_batch():
    for ranks in (1, 2, 4, 8, 16, 32):
        found = ways(FULL, Layout(ranks, 1, "ddp" if ranks > 1 else "none"), 64, ALL_OPEN)
        assert {way.global_batch for way in found} == {64}


def test_what_is_decided_stays():
    wishes = Wishes(micro_batch=4, checkpointing="off")
    (only,) = ways(FULL, Layout(2, 1, "ddp"), 32, wishes)
    assert (only.settings.micro_batch, only.settings.accumulation, only.settings.checkpointing) == (4, 4, "off")


def test_a_prefix_is_never_checkpointed():
    found = ways(replace(FULL, method="prefix"), Layout(), 8, ALL_OPEN)
    assert {way.settings.checkpointing for way in found} == {"off"}


def test_cpu_ranks_have_no_other_host():
    machines = node(replace(H100, link=0.0, host_link=0.0), 2)
    assert names(FULL, machines) == ["ddp", "zero1", "zero2", "fsdp", "zero3"]
    kinds = {way.settings.checkpointing for way in ways(FULL, Layout(), 4, ALL_OPEN, host_is_apart=False)}
    assert kinds == set(CHECKPOINTINGS) - {"host"}
    assert {way.settings.checkpointing for way in ways(FULL, Layout(), 4, Wishes(offload=False))} == kinds
    choice = choose_strategy(
        llama(), FULL, machines, global_batch=4, estimate=plain_estimate, wishes=Wishes(offload=False)
    )
    assert choice.taken is not None
    assert "offload to the host" not in [change.words for change in choice.changes]


def test_trls_loss_stands_in_where_the_head_is_sharded():
    for strategy, loss in (("ddp", "chunked"), ("zero2", "chunked"), ("zero3", "trl_chunked"), ("fsdp", "trl_chunked")):
        assert {way.settings.loss for way in ways(FULL, layout_of(strategy, 8), 8, ALL_OPEN)} == {loss}
    full = replace(FULL, loss="full")
    assert {way.settings.loss for way in ways(full, layout_of("fsdp", 8), 8, ALL_OPEN)} == {"full"}
