"""Files of a given size, their index, and ranges that are copied in one piece."""

from __future__ import annotations

import pytest
import torch
from export_helpers import read, save_adapter, save_base, tensors_of
from transformers import AutoModelForCausalLM

from hf_recipes.core.errors import UserError
from hf_recipes.export.adapter import read_adapter
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.merge import merge_adapter
from hf_recipes.export.plan import plan_merge
from hf_recipes.export.shards import parse_size, place_tensors
from hf_recipes.export.tasks import Copy, tasks_of


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5 * 10**9), ("500 mb", 5 * 10**8), ("2GiB", 2**31), ("1.5KB", 1500), ("4096", 4096), ("10K", 10_000)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-5GB", "5XB", "GB", "5 G B", "0.1", "nan"])
def test_no_sizes(text):
    with pytest.raises(UserError, match=r"is no size: write, for example, 5GB"):
        parse_size(text)


@pytest.mark.parametrize("size", ["20KB", "1MB", "1"])
def test_files_of_a_given_size_load_in_transformers(size, tmp_path, base, adapter):
    merge_adapter(adapter, output=tmp_path / "whole", dtype="bf16")
    merge_adapter(adapter, output=tmp_path / "out", dtype="bf16", max_shard_size=size)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    whole = tensors_of(tmp_path / "whole")
    largest = max(tensor.nbytes for tensor in whole.values())
    for file in files:
        held = sum(tensor.nbytes for tensor in _tensors(file).values())
        assert held <= max(parse_size(size), largest)
    index = tmp_path / "out" / "model.safetensors.index.json"
    if size == "1MB":
        assert [file.name for file in files] == ["model.safetensors"]
        assert not index.exists()
    else:
        assert len(files) == (len(whole) if size == "1" else len(files)) > 1
        metadata = read(index)["metadata"]
        assert metadata["total_size"] == sum(tensor.nbytes for tensor in whole.values())
        assert metadata["total_parameters"] == sum(tensor.numel() for tensor in whole.values())
        assert {file.name for file in files} == set(read(index)["weight_map"].values())
    state = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in whole.items())


def _tensors(file):
    from safetensors.torch import load_file

    return load_file(file)


def test_a_base_in_shards_becomes_one_file_on_request(tmp_path, adapter, base):
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    merge_adapter(adapter, base=tmp_path / "parts", output=tmp_path / "out", dtype="fp32", max_shard_size="1GB")
    merge_adapter(adapter, output=tmp_path / "whole", dtype="fp32")
    assert not (tmp_path / "out" / "model.safetensors.index.json").exists()
    whole, out = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "out")
    assert all(torch.equal(out[name], tensor) for name, tensor in whole.items())


def test_tensors_that_follow_each_other_are_copied_in_one_piece(tmp_path):
    base = save_base(tmp_path / "base", dtype=torch.bfloat16)
    adapter = save_adapter(tmp_path / "adapter", base, target_modules=["q_proj"])
    plan = plan_merge(read_adapter(adapter), read_base(base), "BF16")
    placed = place_tensors(plan, tmp_path / "out")
    tasks = tasks_of(plan, placed)
    copies = [task for task in tasks if isinstance(task, Copy)]
    assert len(copies) == 3  # before, between and after the two layers' q_proj
    assert sum(task.nbytes for task in copies) == sum(o.spec.nbytes for o in plan.outputs if o.is_copy)
