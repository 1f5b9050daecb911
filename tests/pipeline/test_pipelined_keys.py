from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.pipeline.cut import check_micro_batches
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.pipelined_keys import check_pipeline_keys, tell_absent

REFUSED = {
    "method": ("qlora", "method: full or lora"),
    "packing": ("true", "packing: true"),
    "streaming": ("true", "streaming: true"),
    "init_lora_weights": ("pissa", "init_lora_weights: pissa"),
    "loss_kernel": ("liger", "loss_kernel: liger"),
    "optim": ("adafactor", "AdamW's states"),
    "save_strategy": ("epoch", "save_strategy is epoch"),
    "fp16": ("true", "fp16: true"),
    "load_best_model_at_end": ("true", "load_best_model_at_end"),
    "lr_scheduler_type": ("reduce_lr_on_plateau", "follows metrics"),
    "lora_modules_to_save": ("lm_head", "lora_modules_to_save"),
}


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text("model_name_or_path: somewhere\ndatasets: [{path: data.jsonl}]\nstrategy: pp\n")
    return lambda *keys: load_recipe(str(file), list(keys))


@pytest.mark.parametrize("key", REFUSED)
def test_what_a_pipeline_cannot_follow_is_refused_in_a_sentence(key, recipe):
    value, words = REFUSED[key]
    with pytest.raises(UserError, match=words) as refusal:
        check_pipeline_keys(recipe(f"--{key}", value))
    assert str(refusal.value).count(". ") == 0


def test_defaults_and_what_is_supported_pass(recipe):
    check_pipeline_keys(recipe())
    check_pipeline_keys(recipe("--method", "full", "--activation_checkpointing", "true", "--optim", "adamw_torch"))


def test_keys_that_nothing_reads_are_told(recipe, caplog):
    with caplog.at_level("INFO", "hf_recipes"):
        tell_absent(recipe("--eval_on_start", "true", "--dataloader_num_workers", "0"))
    assert "Without effect with strategy: pp: eval_on_start." in caplog.text


def test_1f1b_needs_a_micro_batch_for_each_stage():
    check_micro_batches("1f1b", 4, 4)
    check_micro_batches("gpipe", 1, 4)
    with pytest.raises(UserError, match="gradient_accumulation_steps is 3: raise it, or take gpipe"):
        check_micro_batches("1f1b", 3, 4)
