"""The catalogue: what stands in it is plausible, what is published is what it says, and names find it."""

from __future__ import annotations

import datetime
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.accelerators import (
    CATALOGUE_FILE,
    accelerator_of_device,
    find_accelerator,
    list_accelerators,
)
from hf_recipes.core.errors import UserError
from hf_recipes.plan.hardware.accelerator import choose_accelerators, custom_accelerator, parse_bytes, with_memory

ALL = list_accelerators()
KEYS = [accelerator.key for accelerator in ALL]


def test_there_are_enough_and_each_is_there_once():
    assert len(KEYS) >= 25
    raw = json.loads(CATALOGUE_FILE.read_text(encoding="utf-8"))
    names = [name for entry in raw for name in (entry["key"], *entry["aliases"])]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("accelerator", ALL, ids=KEYS)
def test_every_entry_is_sourced_dated_and_plausible(accelerator):
    assert len(accelerator.source) > 10
    assert datetime.date.fromisoformat(accelerator.date) >= datetime.date(2026, 1, 1)
    assert accelerator.memory_source in ("as PyTorch tells it", "nominal GiB")
    assert 8 * 2**30 < accelerator.memory_bytes < 300 * 2**30
    assert 2e11 < accelerator.bandwidth < 1e13
    assert 1e10 < accelerator.host_link < 1e12
    assert 50 < accelerator.watts < 1500
    assert accelerator.link == 0 or accelerator.link > 1e11
    # A product of fewer bits is never slower; fp8 is at most twice bf16 (more would be a figure with sparsity).
    ladder = [accelerator.flops[name] for name in ("float32", "tf32", "float16", "float8") if name in accelerator.flops]
    assert ladder == sorted(ladder)
    assert accelerator.flops.get("float8", 0) <= 2.03 * accelerator.flops.get("bfloat16", 1)
    # FLOPs a byte of 16-bit products: printed figures with sparsity stand out as twice the most there is.
    half = accelerator.flops.get("bfloat16") or accelerator.flops["float16"]
    assert 30 < half / accelerator.bandwidth < 460


@pytest.mark.parametrize(
    ("key", "dtype", "tflops", "bandwidth_gb"),
    [
        # Multiprocessors × clock × dense multiply-adds a clock × 2, as makers compute them.
        ("h100", "bfloat16", 528 * 1.83e9 * 512 * 2 / 1e12, 3350),  # 989; 1,979 is with sparsity
        ("a100-80g", "bfloat16", 432 * 1.41e9 * 256 * 2 / 1e12, 2039),
        ("rtx-3090", "bfloat16", 82 * 1.695e9 * 256 * 2 / 1e12, 936),  # fp32 accumulation: half of the printed 142
        ("rtx-4090", "bfloat16", 128 * 2.52e9 * 256 * 2 / 1e12, 1008),  # 165; 330 is with fp16 accumulation
        ("rtx-5090", "bfloat16", 170 * 2.407e9 * 256 * 2 / 1e12, 1792),
        ("mi300x", "bfloat16", 1216 * 2.1e9 * 256 * 2 / 1e12, 5300),
        ("mi250x", "bfloat16", 440 * 1.7e9 * 128 * 2 / 1e12, 1638),  # one of two dies
        ("gaudi-2", "bfloat16", 2 * 1.65e9 * 256 * 256 * 2 / 1e12, 2450),
        ("t4", "float16", 320 * 1.59e9 * 64 * 2 / 1e12, 320),
    ],
)
def test_published_dense_rates(key, dtype, tflops, bandwidth_gb):
    accelerator = find_accelerator(key)
    assert accelerator.flops[dtype] == pytest.approx(tflops * 1e12, rel=0.015)
    assert accelerator.bandwidth == bandwidth_gb * 1e9


def test_what_computes_in_no_bf16_says_so():
    assert {key for key in KEYS if "bfloat16" not in find_accelerator(key).flops} == {"t4", "v100-16g", "v100-32g"}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("h100", "h100"),
        ("H100 SXM", "h100"),
        ("NVIDIA A100_80GB", "a100-80g"),
        ("a100-40g", "a100-40g"),
        ("4090", "rtx-4090"),
        ("GeForce RTX 4090", "rtx-4090"),
        ("rtx_3060", "rtx-3060-12g"),
        ("MI300X", "mi300x"),
        ("Gaudi 2", "gaudi-2"),
    ],
)
def test_names_in_any_spelling(name, key):
    assert find_accelerator(name).key == key


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("h10", "did you mean 'h100'?"),
        ("a100", "several kinds: write a100-40g or a100-80g"),
        ("v100", "write v100-16g or v100-32g"),
        ("abacus", "not in the catalogue: name a YAML file"),
        ("", "not in the catalogue"),
    ],
)
def test_a_wrong_name_is_one_sentence_with_the_near_ones(name, sentence):
    with pytest.raises(UserError) as caught:
        find_accelerator(name)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", "h200-nvl"),
        ("NVIDIA H20", "h20"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80g"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40g"),
        ("NVIDIA A800-SXM4-80GB", "a800-80g"),
        ("NVIDIA A10G", "a10g"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("Tesla T4", "t4"),
        ("Tesla V100-SXM2-16GB", "v100-16g"),
        ("NVIDIA GeForce RTX 3090", "rtx-3090"),
        ("AMD Instinct MI300X", "mi300x"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("Quadro P400", None),
    ],
)
def test_the_drivers_name_is_known_whole_or_not_at_all(name, key):
    found = accelerator_of_device(name)
    assert (found.key if found else None) == key


@settings(deadline=None, max_examples=50)
@given(st.floats(0.001, 1e6), st.sampled_from([("GiB", 2**30), ("GB", 1e9), ("MiB", 2**20), ("tb", 1e12)]))
def test_sizes_are_read_in_both_kinds_of_units(amount, unit):
    assert parse_bytes(f"{amount:.6f} {unit[0]}") == pytest.approx(round(amount, 6) * unit[1])


@pytest.mark.parametrize("size", ["", "24 apples", "-3GB", "0", "GB", "nan"])
def test_what_is_no_size_is_refused(size):
    with pytest.raises(UserError, match="is no size of memory"):
        parse_bytes(size)


def test_several_devices_and_a_memory_of_ones_own():
    assert [each.key for each in choose_accelerators("h100, a100-80g,rtx-4090")] == ["h100", "a100-80g", "rtx-4090"]
    (slim,) = choose_accelerators("h100", memory="24GiB")
    assert (slim.memory_bytes, slim.memory_source) == (24 * 2**30, "given")
    assert slim.flops == find_accelerator("h100").flops
    assert with_memory(slim, 5e9).memory_bytes == 5e9
    with pytest.raises(UserError, match="No accelerator named"):
        choose_accelerators(" , ")


def test_an_accelerator_of_ones_own():
    card = custom_accelerator({"name": "My Card", "memory": "24GiB", "tflops": 100, "bandwidth_gb": 900, "watts": 250})
    assert (card.key, card.memory_bytes, card.bandwidth) == ("my-card", 24 * 2**30, 9e11)
    assert card.flops == {"bfloat16": 1e14, "float16": 1e14}
    like = custom_accelerator({"like": "h100", "memory": "40GiB", "tflops": {"bfloat16": 500}})
    assert like.bandwidth == find_accelerator("h100").bandwidth
    assert (like.flops["bfloat16"], like.flops["float8"]) == (5e14, find_accelerator("h100").flops["float8"])


def test_an_accelerator_of_ones_own_is_named_by_its_file(tmp_path):
    file = tmp_path / "my_card.yaml"
    file.write_text("memory: 24GiB\ntflops: {bf16: 100}\nbandwidth_gb: 900\n")
    ours, other = choose_accelerators(f"{file},h100")
    assert (ours.name, ours.memory_bytes, other.key) == ("my_card", 24 * 2**30, "h100")
    file.write_text("like: h100\nmemory: 40GiB\n")
    (like,) = choose_accelerators(str(file))
    assert (like.name, like.flops) == ("my_card", other.flops)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read as YAML .FileNotFoundError."),
        ("memory: [", "cannot be read as YAML .ParserError."),
        ("24GiB", "holds no fields"),
        ("memroy: 24GiB", r"my_card.yaml: Accelerator: unknown field 'memroy' .did you mean 'memory'"),
        ("memory: 24GiB\nbandwidth_gb: 9\ntflops: [1]", r"tflops: '\[1\]' is no number"),
        ("like: h999", "'h999' is not in the catalogue"),
    ],
)
def test_a_file_that_is_no_accelerator_is_told_by_name(content, sentence, tmp_path):
    file = tmp_path / "my_card.yaml"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UserError, match=sentence) as told:
        choose_accelerators(str(file))
    assert "my_card.yaml" in str(told.value)


@pytest.mark.parametrize(
    ("figures", "sentence"),
    [
        ({"memroy": "24GiB"}, "did you mean 'memory'"),
        ({"memory": "24GiB", "tflops": 100}, "give memory, tflops and bandwidth_gb"),
        ({"like": "h100", "bandwidth_gb": 0}, "bandwidth_gb: '0' is no number above 0"),
        ({"like": "h100", "tflops": 0}, "tflops: '0' is no number above 0"),
        ({"like": "h100", "tflops": True}, "tflops: 'True' is no number above 0"),
        ({"like": "h100", "tflops": {"int9": 1}}, "unknown dtype 'int9'; known: bfloat16"),
        ({1: 2}, "unknown field '1'"),
        ({"memory": "24GiB", "tflops": "fast", "bandwidth_gb": 9}, "tflops: 'fast' is no number"),
        ({"like": "h100", "bandwidth_gb": -1}, "bandwidth_gb: '-1' is no number above 0"),
    ],
)
def test_wrong_figures_are_one_sentence(figures, sentence):
    with pytest.raises(UserError, match=sentence):
        custom_accelerator(figures)
