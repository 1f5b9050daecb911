from __future__ import annotations

import math

import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from tiny_models import make_tiny_llama
from tiny_runs import tiny_arguments
from transformers import AutoModelForCausalLM

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.export.merge import merge_adapter
from hf_recipes.models.counts import count_parameters
from hf_recipes.models.methods.lora import LoraSettings, attach_lora
from hf_recipes.training.trainer import SupervisedTrainer


def settings(**more):
    return LoraSettings(**{"r": 4, "alpha": 8, "dropout": 0.0, **more})


def layers_of(model):
    return {name.split("model.layers.")[1]: each for name, each in model.named_modules() if hasattr(each, "lora_A")}


@pytest.mark.parametrize("rslora", [False, True], ids=["LoRA", "rsLoRA"])
def test_patterns_give_modules_their_own_rank_and_scale(rslora):
    model = attach_lora(
        make_tiny_llama(),
        settings(rank_pattern={"layers.1.*q_proj": 2, "q_proj": 6}, alpha_pattern={"v_proj": 5}, use_rslora=rslora),
    )
    got = {name: (each.r["default"], each.scaling["default"]) for name, each in layers_of(model).items()}

    def scale(alpha, rank):
        return alpha / math.sqrt(rank) if rslora else alpha / rank

    assert got == {
        "0.self_attn.q_proj": (6, scale(8, 6)),
        "0.self_attn.v_proj": (4, scale(5, 4)),
        "1.self_attn.q_proj": (2, scale(8, 2)),
        "1.self_attn.v_proj": (4, scale(5, 4)),
    }
    # q_proj: 32 → 32, v_proj: 32 → 16 (two key-value heads of four): (6 + 2) · (32 + 32) + 2 · 4 · (32 + 16).
    assert count_parameters(model)[0] == 8 * 64 + 8 * 48


@pytest.mark.parametrize("variant", [{}, {"use_rslora": True}, {"use_dora": True}], ids=["LoRA", "rsLoRA", "DoRA"])
def test_patterns_trained_resumed_reloaded_and_merged(variant, tiny_model_dir, tokenizer, tmp_path):
    def load(directory):
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)

    def logits(model):
        with torch.no_grad():
            return model.eval()(torch.arange(3, 43)[None]).logits

    def train(directory, resume=None):
        torch.manual_seed(0)
        model = attach_lora(
            load(tiny_model_dir),
            settings(rank_pattern={"layers.1.*q_proj": 2}, alpha_pattern={"v_proj": 5}, **variant),
        )
        ids = [list(range(3 + index, 20 + 2 * index)) for index in range(8)]
        trainer = SupervisedTrainer(
            model=model,
            args=tiny_arguments(
                directory, max_steps=4, per_device_train_batch_size=4, save_strategy="steps", save_steps=2
            ),
            data_collator=SupervisedCollator(pad_token_id=2),
            train_dataset=Dataset.from_list([{"input_ids": row, "labels": row} for row in ids]),
            processing_class=tokenizer,
        )
        trainer.train(resume_from_checkpoint=resume)
        return trainer, [log["loss"] for log in trainer.state.log_history if "loss" in log]

    trainer, losses = train(tmp_path / "run")
    assert losses[-1] < losses[0] - 0.01
    assert train(tmp_path / "again", str(tmp_path / "run" / "checkpoint-2"))[1] == losses
    trainer.save_model(str(tmp_path / "adapter"))
    live = logits(trainer.model)
    reloaded = PeftModel.from_pretrained(load(tiny_model_dir), tmp_path / "adapter")
    torch.testing.assert_close(logits(reloaded), live, rtol=0, atol=2e-6)
    merge_adapter(tmp_path / "adapter", base=tiny_model_dir, output=tmp_path / "merged", dtype="fp32")
    torch.testing.assert_close(logits(load(tmp_path / "merged")), live, rtol=0, atol=5e-6)


@pytest.mark.parametrize("key", ["rank_pattern", "alpha_pattern"])
def test_t7_a_pattern_that_matches_nothing_is_named_even_among_others(key):
    with pytest.raises(UserError) as error:
        attach_lora(make_tiny_llama(), settings(**{key: {"q_proj": 2, "v_prj": 2}}))
    assert str(error.value) == (
        f"lora_{key}: 'v_prj' matches the end of no module with an adapter (did you mean 'v_proj'?): they are "
        "q_proj, v_proj, in full such as 'model.layers.0.self_attn.q_proj'."
    )
    # A module there is, but without an adapter.
    with pytest.raises(UserError, match="'k_proj' matches the end of no module with an adapter"):
        attach_lora(make_tiny_llama(), settings(**{key: {"k_proj": 2}}))
    with pytest.raises(UserError, match=r"'layers.1.*q_proj' has no effect, earlier patterns take all it matches"):
        attach_lora(make_tiny_llama(), settings(**{key: {"q_proj": 2, "layers.1.*q_proj": 4}}))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"rank_pattern": {"q_proj(": 2}}, r"lora_rank_pattern: 'q_proj\(' is no regular expression"),
        ({"rank_pattern": {"q_proj": 2.5}}, "lora_rank_pattern: 'q_proj' is given 2.5: give a whole number above 0"),
        ({"rank_pattern": {"q_proj": 0}}, "lora_rank_pattern: 'q_proj' is given 0"),
        ({"alpha_pattern": {"q_proj": "x"}}, "lora_alpha_pattern: 'q_proj' is given 'x': give a number above 0"),
        ({"init_lora_weights": "pisa"}, r"'pisa' is none of default, .*eva.* \(did you mean 'pissa'\?\)"),
        ({"init_lora_weights": "pissa_niter_N"}, "is none of default"),
        ({"init_lora_weights": "pissa_niter_0"}, "is none of default"),
        ({"init_lora_weights": True}, "'True' is none of default"),
        ({"init_lora_weights": "orthogonal", "r": 3}, "'orthogonal' halves the rank, and 3 is odd"),
        ({"init_lora_weights": "orthogonal", "rank_pattern": {"q_proj": 5}}, "and 5 is odd"),
        ({"init_lora_weights": "eva", "target_parameters": ["w"]}, "'eva' does not reach lora_target_parameters"),
    ],
)
def test_wrong_settings_are_told_before_there_is_a_model(wrong, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        settings(**wrong)
    assert "\n" not in str(error.value)


def test_the_gaussian_start_has_the_spread_of_its_rank():
    torch.manual_seed(0)
    model = attach_lora(make_tiny_llama(), settings(init_lora_weights="gaussian"))
    a = torch.cat([each.lora_A["default"].weight.flatten() for each in layers_of(model).values()])
    # PEFT draws from N(0, 1/r²): four matrices of 4 × 32 values, whose spread is known to 1 / √(2 · 512) = 3 %.
    assert a.std().item() == pytest.approx(1 / 4, rel=0.1)
    assert not any(each.lora_B["default"].weight.any() for each in layers_of(model).values())


def test_dropout_over_a_start_taken_from_the_base_is_warned_of(caplog):
    attach_lora(make_tiny_llama(), settings(init_lora_weights="pissa"))
    assert "lora_dropout" not in caplog.text
    attach_lora(make_tiny_llama(), settings(init_lora_weights="pissa", dropout=0.05))
    assert "set lora_dropout to 0" in caplog.text
