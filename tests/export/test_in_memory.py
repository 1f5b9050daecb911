"""Adapters that only PEFT can merge, with the whole model in memory, and what is held against it."""

from __future__ import annotations

import logging
from pathlib import Path

import peft
import pytest
import torch
from export_helpers import change_tensors, live_logits, merged_logits, save_base, tensors_of
from mixtures import train_at_random
from peft import LoraConfig, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING
from peft.tuners.lora.config import BdLoraConfig, KasaConfig
from transformers import AutoModelForCausalLM

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.export import in_memory
from hf_recipes.export.bases.read import read_base
from hf_recipes.export.companions import merged_config, write_companions
from hf_recipes.export.in_memory import merge_in_memory
from hf_recipes.export.methods import IN_MEMORY, route

TARGETS = ["q_proj", "v_proj"]
# What the layers of the tiny base (32 and 16 wide) need other than the defaults.
SETTINGS = {
    "ADALORA": {"total_step": 10},
    "BOFT": {"boft_block_size": 4},
    "C3A": {"block_size": 8},
    "FOURIERFT": {"n_frequency": 20},
    "LN_TUNING": {"target_modules": ["input_layernorm", "norm"]},
    "MISS": {"r": 4},
    "OFT": {"oft_block_size": 4},
    "PSOFT": {"r": 8},
    "ROAD": {"group_size": 8},
    "SHIRA": {"r": 2},
    "TRAINABLE_TOKENS": {"token_indices": [1, 5], "target_modules": ["embed_tokens"]},
    "VBLORA": {"num_vectors": 16, "vector_length": 16},
    "WAVEFT": {"n_frequency": 20},
}
LORA = {
    "kasa": {"kasa_config": KasaConfig()},
    "block-diagonal": {"use_bdlora": BdLoraConfig(["q_proj"], ["v_proj"], nblocks=2)},
}
OFTEN = ("ADALORA", "LN_TUNING", "LOKR", "TRAINABLE_TOKENS", "VERA")


def save(directory: Path, base: Path, kind: str, **settings) -> Path:
    """A random adapter of PEFT's method `kind` on `base`."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType[kind]]
    own = {"target_modules": TARGETS, **SETTINGS.get(kind, {}), **settings}
    torch.manual_seed(0)
    return train_at_random(get_peft_model(model, config(task_type="CAUSAL_LM", **own)), directory)


@pytest.fixture
def base(tmp_path):
    return save_base(tmp_path / "base", attention_bias=True)


def merge(adapter: Path, base: Path, output: Path, dtype="float32", method="VERA"):
    output.mkdir()
    read = read_base(base)
    facts = merge_in_memory(adapter, read, output, dtype, method=method)
    write_companions(output, adapter, base, merged_config(read, dtype, None, False))
    return facts


def check(adapter, base, tmp_path, method):
    assert route(peft.PeftConfig.from_pretrained(adapter).to_dict(), "it") == "in_memory"
    facts = merge(adapter, base, tmp_path / "out", method=method)
    live = live_logits(base, adapter)
    assert (live - merged_logits(base)).abs().max() > 1e-4
    torch.testing.assert_close(merged_logits(tmp_path / "out"), live, atol=2e-6, rtol=0)
    before, after = tensors_of(base), tensors_of(tmp_path / "out")
    assert set(before) == set(after)
    assert facts.tensors_changed == sum(not torch.equal(before[name], after[name]) for name in before) > 0
    assert facts.adapter_tensors == len(tensors_of(adapter))


@pytest.mark.parametrize("kind", OFTEN)
def test_what_peft_can_merge_computes_the_live_adapters_logits(kind, base, tmp_path):
    check(save(tmp_path / "adapter", base, kind), base, tmp_path, kind)


@pytest.mark.trials
@pytest.mark.parametrize("kind", [kind for kind in IN_MEMORY if kind not in OFTEN])
def test_all_that_peft_can_merge(kind, base, tmp_path):
    check(save(tmp_path / "adapter", base, kind), base, tmp_path, kind)


@pytest.mark.parametrize("settings", LORA.values(), ids=LORA)
def test_loras_that_are_no_plain_sum(settings, base, tmp_path):
    check(save(tmp_path / "adapter", base, "LORA", r=4, **settings), base, tmp_path, "LORA")


def test_one_rounding_to_bf16_the_bases_config_and_what_is_told(base, tmp_path, caplog):
    adapter = save(tmp_path / "adapter", base, "VERA")
    with caplog.at_level(logging.INFO, "hf_recipes"):
        facts = merge(adapter, base, tmp_path / "out", "bfloat16")
    told = [record.getMessage() for record in caplog.records if record.name == "hf_recipes"]
    merge(adapter, base, tmp_path / "exact")
    rounded, exact = tensors_of(tmp_path / "out"), tensors_of(tmp_path / "exact")
    assert all(torch.equal(rounded[name], exact[name].bfloat16()) for name in exact)
    assert facts.bytes == sum(tensor.nbytes for tensor in rounded.values())
    assert sum("VERA has no algebra tensor by tensor here" in line for line in told) == 1


def refused(adapter, base, tmp_path, match, error=UserError, **arguments):
    with pytest.raises(error, match=match) as caught:
        merge(adapter, base, tmp_path / "out", **arguments)
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "out").glob("*.safetensors"))


def test_nan_is_refused(base, tmp_path):
    adapter = save(tmp_path / "adapter", base, "VERA")
    name = sorted(tensors_of(adapter))[0]
    change_tensors(adapter, lambda tensors: tensors[name].view(-1)[0].fill_(torch.nan))
    refused(adapter, base, tmp_path, f"'{name}' holds NaN or Inf")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda tensors: tensors.pop("base_model.model.model.layers.0.self_attn.q_proj.vera_lambda_b"), "is missing"),
        (
            lambda tensors: tensors.update({"base_model.model.model.layers.9.vera_lambda_b": torch.ones(2)}),
            "fits nothing",
        ),
    ],
)
def test_adapter_tensors_that_peft_would_only_warn_of_are_refused(change, match, base, tmp_path):
    adapter = save(tmp_path / "adapter", base, "VERA")
    change_tensors(adapter, change)
    refused(adapter, base, tmp_path, match)


def test_another_base_is_refused(base, tmp_path):
    adapter = save(tmp_path / "adapter", base, "VERA")
    other = save_base(tmp_path / "other", hidden_size=64)
    refused(adapter, other, tmp_path, "belongs to another one")


def test_tied_words_are_refused(tmp_path):
    tied = save_base(tmp_path / "tied", tied=True)
    adapter = save(tmp_path / "adapter", tied, "LOHA", target_modules=["lm_head", "q_proj"])
    refused(adapter, tied, tmp_path, "'lm_head.weight'.*are one tensor", method="LOHA")


def test_an_untrained_adapter_changes_nothing(base, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(base)
    config = PEFT_TYPE_TO_CONFIG_MAPPING[peft.PeftType.VERA](task_type="CAUSAL_LM", target_modules=TARGETS)
    get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    refused(tmp_path / "adapter", base, tmp_path, "changes nothing", CheckFailed)


def test_a_merge_that_is_not_what_the_adapter_computes_is_refused(base, tmp_path):
    """PEFT merges the replicas of a layer into one: the logits tell."""
    adapter = save(tmp_path / "adapter", base, "LORA", r=4, layer_replication=[(0, 2), (1, 2)])
    refused(adapter, base, tmp_path, "other tensors than the base|logits differ", CheckFailed)


def test_too_little_memory_is_told_before_loading(base, tmp_path, monkeypatch):
    adapter = save(tmp_path / "adapter", base, "VERA")
    needed = in_memory.needed_bytes(read_base(base), adapter)
    sizes = [4 * tensor.numel() for tensor in tensors_of(base).values()]
    of_adapter = 2 * (adapter / "adapter_model.safetensors").stat().st_size
    assert sum(sizes) < needed <= sum(sizes) + 3 * max(sizes) + of_adapter
    monkeypatch.setattr(in_memory, "free_memory_bytes", lambda: needed - 1)
    refused(adapter, base, tmp_path, "whole model in memory in fp32, which takes .* merge it on a machine with more")


def test_values_beyond_fp16_are_refused(base, tmp_path):
    adapter = save(tmp_path / "adapter", base, "LN_TUNING")
    change_tensors(adapter, lambda tensors: [tensor.fill_(1e6) for tensor in tensors.values()])
    refused(adapter, base, tmp_path, "do not fit into torch.float16", dtype="float16", method="LN_TUNING")


def test_lora_without_a_special_setting_is_streamed():
    config = LoraConfig(r=4, target_modules=TARGETS).to_dict()
    assert route(config, "it") == "stream"
