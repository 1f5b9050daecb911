"""What sound savers write is good at every level: a verification that refuses it would cost verified work."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from checkpoint_helpers import tiny_llama
from peft import (
    IA3Config,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    VeraConfig,
    get_peft_model,
)
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from hf_recipes.checkpoints.manifest import write_manifest
from hf_recipes.checkpoints.verification.findings import LEVELS
from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.models.methods.bottleneck_layer import BottleneckConfig

MODEL = "model.safetensors"
QV = ["q_proj", "v_proj"]
PEFT_METHODS = {
    "lora": LoraConfig(target_modules=QV),
    "lora with biases": LoraConfig(target_modules=QV, bias="all"),
    "lora on the embedding": LoraConfig(target_modules=["embed_tokens", "q_proj"]),
    "lora, head and embedding kept": LoraConfig(target_modules=QV, modules_to_save=["embed_tokens", "lm_head"]),
    "lora and some tokens": LoraConfig(target_modules=QV, trainable_token_indices=[3, 5]),
    "lora by pattern": LoraConfig(target_modules=r".*\.mlp\.(up|down)_proj", rank_pattern={"up_proj": 2}),
    "dora": LoraConfig(target_modules=QV, use_dora=True),
    "rslora with lora biases": LoraConfig(target_modules=QV, use_rslora=True, lora_bias=True),
    "ia3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "loha": LoHaConfig(target_modules=QV, r=2),
    "lokr": LoKrConfig(target_modules=QV, r=2),
    "oft": OFTConfig(target_modules=QV, oft_block_size=4),
    "vera": VeraConfig(target_modules=QV, r=2),
    "prefix": PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "prompt": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4),
    "bottleneck": BottleneckConfig(task_type="CAUSAL_LM", adapter_size=4),
}


def require_good(directory, **settings):
    for level in LEVELS:
        report = verify_checkpoint(directory, level, **settings)
        assert report.ok, [str(problem) for problem in report.problems]
    return report


def stirred(model):
    """No parameter stays where it was initialised, which for many methods is where they change nothing."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model


@pytest.mark.slow
@pytest.mark.parametrize("method", PEFT_METHODS)
def test_an_adapter_of_every_method_is_good_upon_its_base(method, tiny_model_dir, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    stirred(get_peft_model(base, PEFT_METHODS[method])).save_pretrained(tmp_path / "adapter")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_model_dir / name, tmp_path / "adapter")
    report = require_good(tmp_path / "adapter")
    assert all("not loaded" not in note for note in report.notes), report.notes


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"num_key_value_heads": 4, "head_dim": 16}])
@pytest.mark.parametrize("shard_size", ["20KB", "1MB"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_saved_model_is_good_and_loads(changes, shard_size, dtype, tmp_path):
    tiny_llama(**changes).to(dtype).save_pretrained(tmp_path, max_shard_size=shard_size)
    report = require_good(tmp_path)
    assert [note for note in report.notes if "No manifest" not in note] == []


def test_a_snapshot_of_the_hubs_cache_is_good_and_is_found_as_a_base(tiny_model_dir, tmp_path, monkeypatch):
    commit = "0" * 40
    model = tmp_path / "hub" / "models--org--tiny"
    snapshot = model / "snapshots" / commit
    for folder in (snapshot, model / "blobs", model / "refs"):
        folder.mkdir(parents=True)
    (model / "refs" / "main").write_text(commit)
    for number, file in enumerate(sorted(tiny_model_dir.iterdir())):
        shutil.copy(file, model / "blobs" / f"{number:064x}")
        (snapshot / file.name).symlink_to(Path("..", "..", "blobs", f"{number:064x}"))
    require_good(snapshot)
    (tmp_path / "link").symlink_to(snapshot)
    require_good(tmp_path / "link")

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    adapter = get_peft_model(AutoModelForCausalLM.from_pretrained(snapshot), LoraConfig(target_modules=QV))
    stirred(adapter).save_pretrained(tmp_path / "adapter")
    config = tmp_path / "adapter" / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base_model_name_or_path": "org/tiny"}))
    report = require_good(tmp_path / "adapter")
    assert all("not loaded" not in note for note in report.notes)


@pytest.mark.parametrize("settings", [{"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}, {}])
def test_a_model_saved_in_four_bits_is_good_and_so_is_an_adapter_upon_it(settings, tiny_model_dir, tmp_path):
    quantised = BitsAndBytesConfig(load_in_4bit=True, **settings)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, quantization_config=quantised)
    model.save_pretrained(tmp_path / "base")
    require_good(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    stirred(get_peft_model(model, LoraConfig(target_modules=QV))).save_pretrained(tmp_path / "adapter")
    require_good(tmp_path / "adapter", base=tmp_path / "base")


def test_tensors_of_every_dtype_are_good_and_those_not_judged_are_told(tmp_path):
    tensors = {
        str(dtype): torch.ones(8).to(dtype)
        for dtype in (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.complex64, torch.bool)
    }
    tensors["scales"] = torch.full((8,), 127, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    tensors["pairs"] = torch.full((4, 4), 0x22, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    save_file(tensors, tmp_path / MODEL)
    report = verify_checkpoint(tmp_path, "content")
    assert report.ok
    assert any("F4" in note and "not judged" in note for note in report.notes)
    assert require_good(tmp_path)


def test_a_model_by_code_of_its_own_is_not_run_and_that_is_told(tiny_model_dir, tmp_path):
    directory = shutil.copytree(tiny_model_dir, tmp_path / "custom")
    (directory / "modeling_mine.py").write_text("raise SystemExit('this code was run')")
    config = json.loads((directory / "config.json").read_text())
    remote = {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "modeling_mine.C", "AutoModelForCausalLM": "modeling_mine.M"},
    }
    (directory / "config.json").write_text(json.dumps({**config, **remote}))
    report = require_good(directory)
    assert any("no other code is run" in note for note in report.notes)


def test_a_manifest_of_an_adapter_is_good_at_every_level(tiny_model_dir, tmp_path):
    base = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    stirred(get_peft_model(base, LoraConfig(target_modules=QV))).save_pretrained(tmp_path / "adapter")
    write_manifest(tmp_path / "adapter")
    assert require_good(tmp_path / "adapter").notes == []
