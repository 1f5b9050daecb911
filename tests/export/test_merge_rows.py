"""Row blocks, and that merging by them gives the bits of merging the whole tensor."""

from __future__ import annotations

import pytest
import torch
from export_helpers import change_tensors, peft_merge, save_adapter, save_base, tensors_of
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.export import rows, stream, tasks
from hf_recipes.export.merge import merge_adapter
from hf_recipes.export.proofs import tensors as proving
from hf_recipes.export.rows import row_blocks


@given(st.integers(0, 5000), st.integers(0, 4000), st.integers(1, 3000), st.integers(1, 5000))
def test_blocks_cover_the_rows_once_in_order_and_are_never_low(first, count, columns, elements):
    blocks = list(row_blocks(first, first + count, columns, elements))
    assert [row for block in blocks for row in range(block.start, block.stop)] == list(range(first, first + count))
    heights = [block.stop - block.start for block in blocks]
    assert all(height >= 16 for height in heights) or len(blocks) <= 1
    assert max(heights, default=0) < 2 * max(16, elements // columns) + 1
    assert not heights or max(heights) - min(heights) <= 1


LORA = [
    {"target_modules": "all-linear"},
    {"target_modules": ["q_proj", "down_proj"], "use_dora": True},
    {"target_modules": ["embed_tokens", "q_proj"], "r": 3, "lora_alpha": 5, "use_rslora": True},
    {"target_modules": ["v_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    {"target_modules": ["v_proj"], "trainable_token_indices": [3, 17, 18, 63]},
]


@pytest.mark.parametrize("lora", LORA, ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_small_blocks_and_threads_change_no_bit(lora, threads, tmp_path, monkeypatch):
    base = save_base(tmp_path / "base", dtype=torch.bfloat16, hidden_size=64, intermediate_size=96)
    adapter = save_adapter(tmp_path / "adapter", base, **lora)
    golden = peft_merge(base, adapter)
    if "embed_tokens" in lora["target_modules"]:  # PEFT rounds an embedding's update first: whole tensors decide
        merge_adapter(adapter, output=tmp_path / "whole", dtype="bf16", threads=1)
        golden = tensors_of(tmp_path / "whole")
    monkeypatch.setattr(rows, "BLOCK_ELEMENTS", 600)
    for function in (stream.row_blocks, proving.row_blocks, tasks.row_blocks):
        monkeypatch.setattr(function, "__defaults__", (600,))
    for module in (tasks, proving):
        monkeypatch.setattr(module, "_TASK_ELEMENTS", 1500)
    report = merge_adapter(adapter, output=tmp_path / "out", dtype="bf16", threads=threads)
    written = tensors_of(tmp_path / "out")
    assert set(written) == set(golden)
    assert all(torch.equal(tensor, golden[name]) for name, tensor in written.items())
    assert report.proof["tensors"]["recomputed"] == report.tensors_merged


def test_a_fault_in_any_thread_ends_the_merge_and_leaves_nothing(tmp_path, base, adapter):
    change_tensors(adapter, lambda tensors: [tensor.mul_(1e30) for tensor in tensors.values()])
    with pytest.raises(Exception, match="do not fit"):
        merge_adapter(adapter, output=tmp_path / "out", dtype="fp32", threads=4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]
