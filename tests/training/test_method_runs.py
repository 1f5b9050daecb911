"""Every method by its recipe, through whole runs: trained, saved, resumed, reloaded and, where it can be, merged."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from hf_recipes.checkpoints.verification.verify import verify_checkpoint
from hf_recipes.core.errors import UserError
from hf_recipes.export.merge import merge_adapter
from hf_recipes.models.base import load_base
from hf_recipes.models.source import find_model
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.evaluation_loaders import load_adapter
from hf_recipes.training.run import train

RECIPE = """
model_name_or_path: {model}
overfit_check: off
datasets:
  - path: {directory}/rows.jsonl
learning_rate: 1.0e-2
per_device_train_batch_size: 4
max_steps: 12
save_steps: 6
eval_share: 0
logging_steps: 1
disable_tqdm: true
"""
LORA = ["--lora_r", "4"]
METHODS: dict[str, list[str]] = {
    "full": ["--learning_rate", "1e-3"],
    "partial": ["--trainable_layers", "1", "--trainable_modules", "[norm]", "--learning_rate", "1e-3"],
    "lora": LORA,
    "lora, all linear, rank patterns, rsLoRA": [
        *LORA,
        *("--lora_target_modules", "all-linear", "--use_rslora", "true", "--lora_rank_pattern", "{q_proj: 2}"),
        *("--lora_alpha_pattern", "{down_proj: 8}"),
    ],
    "lora from PiSSA": [*LORA, "--init_lora_weights", "pissa", "--lora_dropout", "0"],
    "lora from PiSSA by iteration": [*LORA, "--init_lora_weights", "pissa_niter_4", "--lora_dropout", "0"],
    "lora from OLoRA": [*LORA, "--init_lora_weights", "olora", "--lora_dropout", "0"],
    "lora from EVA": [*LORA, "--init_lora_weights", "eva"],
    "lora, LoRA+": [*LORA, "--loraplus_lr_ratio", "4"],
    "lora, paged 8-bit Adam": [*LORA, "--optim", "paged_adamw_8bit"],
    "dora": LORA,
    "qlora": LORA,
    "qlora, fp4, scales unquantised": [*LORA, "--bnb_4bit_quant_type", "fp4", "--use_bnb_nested_quant", "false"],
    "qlora, 8-bit": [*LORA, "--load_in_8bit", "true"],
    "adapter": ["--adapter_size", "8"],
    "prefix": ["--num_virtual_tokens", "4", "--learning_rate", "3e-1"],
    "ia3": ["--learning_rate", "3e-1"],
}
# Near relations of others that the suite runs.
RELATED = (
    "lora",
    "lora from PiSSA",
    "lora from EVA",
    "dora",
    "qlora, 8-bit",
    "lora from PiSSA by iteration",
    "lora from OLoRA",
    "lora, LoRA+",
    "lora, paged 8-bit Adam",
    "qlora, fp4, scales unquantised",
)
# Nothing to merge, or nothing left to be merged.
UNMERGED = ("full", "partial", "adapter", "prefix")


@pytest.fixture
def workplace(four_bit_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"Say number {i}", "completion": f"The number is {i * 7 % 10}."} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=four_bit_model_dir, directory=tmp_path))
    return tmp_path


def losses(run):
    lines = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    return [event["loss"] for event in lines if event["kind"] == "log" and "loss" in event]


def tensors(directory):
    (file,) = directory.glob("*model.safetensors")
    return load_file(file)


def logits(model):
    ids = torch.arange(5, 17).unsqueeze(0)
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.trials] if name in RELATED else []) for name in METHODS]
)
def test_a_method_trains_resumes_to_the_same_end_reloads_and_merges(name, workplace, four_bit_model_dir):
    method = name.split(",")[0].split()[0]
    keys = ["--method", method, *METHODS[name]]
    run = train(load_recipe("recipe.yaml", ["--output_dir", "whole", *keys]))
    whole = losses(run)
    assert sum(whole[-3:]) < sum(whole[:3]) - 0.1, whole
    result = run.model if method in ("full", "partial") else run.adapter
    assert verify_checkpoint(result).ok
    frozen = {torch.bfloat16} if method == "partial" else set()  # as the base, on hardware with bf16
    assert {tensor.dtype for tensor in tensors(result).values()} - frozen == {torch.float32}

    shutil.copytree("whole", "resumed", ignore=shutil.ignore_patterns("checkpoint-12", "adapter", "model", "events*"))
    again = train(load_recipe("recipe.yaml", ["--output_dir", "resumed", "--resume_from_checkpoint", "last", *keys]))
    assert losses(again) == pytest.approx(whole[6:], abs=2e-5)
    resumed = tensors(again.path / result.name)
    for tensor_name, tensor in tensors(result).items():
        torch.testing.assert_close(resumed[tensor_name], tensor, atol=1e-4, rtol=1e-3)

    base = load_base(find_model(str(four_bit_model_dir)), dtype="float32")
    untouched = logits(base)
    if method in ("full", "partial"):
        tuned = AutoModelForCausalLM.from_pretrained(result, dtype=torch.float32)
    else:
        tuned = load_adapter(base, result)
    assert not torch.allclose(logits(tuned), untouched, atol=1e-3)
    if method in UNMERGED:
        if method not in ("full", "partial"):
            with pytest.raises(UserError, match=r"unmerged|beside its base"):
                merge_adapter(result, output="merged", dtype="fp32")
        return
    merged = merge_adapter(result, output="merged", dtype="fp32")
    served = AutoModelForCausalLM.from_pretrained(merged.output, dtype=torch.float32)
    torch.testing.assert_close(logits(served), logits(tuned), atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_start_that_is_not_the_runs_own_is_refused_on_resume(damage, workplace):
    keys = ["--output_dir", "run", *METHODS["lora from PiSSA"]]
    train(load_recipe("recipe.yaml", [*keys, "--max_steps", "8"]))
    start = workplace / "run" / "initial_adapter.safetensors"
    if damage == "gone":
        start.unlink()
    else:
        start.write_bytes(start.read_bytes()[:-1] + b"\x01")
    with pytest.raises(UserError, match="its hash differs" if damage == "changed" else "put it back"):
        train(load_recipe("recipe.yaml", [*keys, "--resume_from_checkpoint", "last"]))
