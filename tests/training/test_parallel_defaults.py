from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.models.precision import Precision
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.strategy.names import Sizes, layout_of
from hf_recipes.training.parallel_defaults import check_device, reduction_dtype, set_parallel_defaults

BF16 = Precision("bfloat16", bf16=True, fp16=False)
FP32 = Precision("float32", bf16=False, fp16=False)


def arguments_with(**more):
    config = SimpleNamespace(gradient_accumulation_kwargs=None, even_batches=True)
    config.__dict__.update({key: more.pop(key) for key in list(more) if key in config.__dict__})
    plain = {"average_tokens_across_devices": True, "gradient_accumulation_steps": 2}
    return SimpleNamespace(accelerator_config=config, **{**plain, **more})


def test_fsdp2_reduces_at_each_micro_batch_and_this_is_told(caplog):
    arguments = arguments_with()
    with caplog.at_level(logging.INFO):
        set_parallel_defaults(arguments, layout_of("fsdp", 4), BF16)
    assert arguments.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    assert "sync_each_batch" in caplog.text


def test_what_the_recipe_says_of_it_stays():
    given = {"sync_each_batch": False}
    arguments = arguments_with(gradient_accumulation_kwargs=given)
    set_parallel_defaults(arguments, layout_of("fsdp", 4), BF16)
    assert arguments.accelerator_config.gradient_accumulation_kwargs == given


@pytest.mark.parametrize("layout", [Layout(), layout_of("ddp", 4), layout_of("zero2", 4), layout_of("tp", 4)])
def test_elsewhere_it_is_left_alone(layout):
    arguments = arguments_with()
    set_parallel_defaults(arguments, layout, BF16)
    assert arguments.accelerator_config.gradient_accumulation_kwargs is None


def test_seldom_meant_settings_are_told(caplog):
    set_parallel_defaults(arguments_with(), layout_of("ddp", 4), BF16)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]
    strange = arguments_with(average_tokens_across_devices=False, even_batches=False)
    set_parallel_defaults(strange, layout_of("ddp", 4), BF16)
    assert "each token counts alike" in caplog.text
    assert "run out of rows before the others" in caplog.text


@pytest.mark.parametrize(
    ("strategy", "precision", "dtype"),
    [("ddp", BF16, "fp32"), ("zero2", BF16, "bf16"), ("fsdp", BF16, "bf16"), ("zero3", FP32, "fp32")],
)
def test_the_dtype_of_the_reduction_is_told(strategy, precision, dtype, caplog):
    layout = layout_of(strategy, 4)
    assert reduction_dtype(layout, precision) == dtype
    with caplog.at_level(logging.INFO):
        set_parallel_defaults(arguments_with(), layout, precision)
    assert f"averaged over the ranks in {dtype}" in caplog.text


def test_fsdp2_and_deepspeed_reduce_in_what_is_told():
    """Held against the libraries: accelerate's policy, and DeepSpeed's engine."""
    import torch
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    assert plugin.mixed_precision_policy.reduce_dtype == torch.bfloat16
    engine = pytest.importorskip("deepspeed.runtime.engine").DeepSpeedEngine
    told = SimpleNamespace(communication_data_type=None)
    asked = SimpleNamespace(_config=told, fp16_enabled=lambda: False, bfloat16_enabled=lambda: True)
    assert engine.communication_data_type.fget(asked) == torch.bfloat16


def test_tokens_are_averaged_over_ranks_and_batches_are_even_by_default(tmp_path):
    from trl import SFTConfig

    arguments = SFTConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False)
    assert arguments.average_tokens_across_devices
    assert arguments.accelerator_config.even_batches


@pytest.mark.parametrize(("rows", "repeated"), [(16, 0), (13, 3), (9, 3)])
def test_every_row_is_seen_and_an_uneven_last_batch_is_filled_from_the_start(rows, repeated):
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler

    batches = BatchSampler(range(rows), batch_size=2, drop_last=False)
    shards = [list(BatchSamplerShard(batches, 2, rank, even_batches=True)) for rank in (0, 1)]
    assert len(shards[0]) == len(shards[1])  # no rank waits for another that has ended
    seen = [row for shard in shards for batch in shard for row in batch]
    assert set(seen) == set(range(rows))
    assert len(seen) - rows == repeated < 4


@pytest.mark.parametrize(
    "layout", [layout_of("fsdp", 4), layout_of("zero2", 4), layout_of("tp", 4), layout_of("zero2_offload", 1)]
)
def test_cpu_ranks_do_not_quietly_get_something_else(layout):
    check_device(layout, "cuda")
    with pytest.raises(UserError, match="shards nothing over CPU ranks: write strategy: ddp, or pp"):
        check_device(layout, "cpu")


@pytest.mark.parametrize(
    "layout", [Layout(), layout_of("ddp", 4), layout_of("pp", 8, sizes=Sizes(pipeline=2, tensor=2))]
)
def test_what_cpu_ranks_can_do_passes(layout):
    check_device(layout, "cpu")
