from __future__ import annotations

import math

import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from sampled import sampled
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


@pytest.mark.parametrize("variant", sampled([{}, {"use_rslora": True}, {"use_dora": True}], keep=[{"use_dora": True}]))
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
        ({"rank_pattern": {"q_proj": 2.5}}, "lora_rank_pattern: 'q_proj' is 2.5: give a whole number from 1 to 4096"),
        ({"rank_pattern": {"q_proj": 0}}, "lora_rank_pattern: 'q_proj' is 0"),
        ({"rank_pattern": {"q_proj": 4097}}, "lora_rank_pattern: 'q_proj' is 4097"),
        ({"rank_pattern": {"q_proj": math.inf}}, "lora_rank_pattern: 'q_proj' is inf"),
        ({"rank_pattern": {"": 2}}, "lora_rank_pattern: '' is no name of a module"),
        ({"rank_pattern": {3: 2}}, "lora_rank_pattern: 3 is no name of a module"),
        ({"rank_pattern": ["q_proj"]}, r"lora_rank_pattern is \['q_proj'\]: give a mapping"),
        ({"alpha_pattern": 8}, "lora_alpha_pattern is 8: give a mapping"),
        ({"alpha_pattern": {"q_proj": "x"}}, "lora_alpha_pattern: 'q_proj' is 'x': give a finite number above 0"),
        ({"alpha_pattern": {"q_proj": math.nan}}, "lora_alpha_pattern: 'q_proj' is nan"),
        ({"alpha_pattern": {"q_proj": math.inf}}, "lora_alpha_pattern: 'q_proj' is inf"),
        ({"alpha_pattern": {"q_proj": True}}, "lora_alpha_pattern: 'q_proj' is True"),
        ({"alpha": 0}, "lora_alpha is 0: give a finite number above 0"),
        ({"alpha": math.nan}, "lora_alpha is nan"),
        ({"alpha": "32"}, "lora_alpha is '32'"),
        ({"r": 0}, "lora_r is 0: give a whole number from 1 to 4096"),
        ({"r": 8.5}, "lora_r is 8.5"),
        ({"r": "8"}, "lora_r is '8'"),
        ({"r": True}, "lora_r is True"),
        ({"r": 5000}, "lora_r is 5000"),
        ({"dropout": 1}, "lora_dropout is 1: give a probability of 0 or more, below 1"),
        ({"dropout": -0.1}, "lora_dropout is -0.1"),
        ({"dropout": math.nan}, "lora_dropout is nan"),
        ({"use_dora": "false"}, "use_dora is 'false': give true or false"),
        ({"use_rslora": 1}, "use_rslora is 1: give true or false"),
        ({"modules_to_save": 3}, "lora_modules_to_save is 3: give a name or a list of names"),
        ({"modules_to_save": [""]}, "lora_modules_to_save: a name is empty"),
        ({"target_modules": []}, "lora_target_modules names no module"),
        ({"target_modules": ""}, "lora_target_modules: a name is empty"),
        ({"target_modules": [3]}, r"lora_target_modules is \[3\]: give a name or a list of names"),
        ({"target_parameters": {"a": 1}}, "lora_target_parameters is .*: give a name or a list of names"),
        ({"init_lora_weights": "pisa"}, r"'pisa' is none of default, .*eva.* \(did you mean 'pissa'\?\)"),
        ({"init_lora_weights": "PiSSA"}, r"\(did you mean 'pissa'\?\)"),
        ({"init_lora_weights": None}, "'None' is none of default"),
        ({"init_lora_weights": "pissa_niter_N"}, "gives no number of iterations from 1 to 64: write .* pissa_niter_16"),
        ({"init_lora_weights": "pissa_niter_0"}, "'pissa_niter_0' gives no number of iterations"),
        ({"init_lora_weights": "pissa_niter_65"}, "'pissa_niter_65' gives no number of iterations"),
        ({"init_lora_weights": False}, "init_lora_weights is False: .* write default, or orthogonal"),
        ({"init_lora_weights": "eva", "rank_pattern": {"q_proj": 2}}, "'eva' .* would override lora_rank_pattern"),
        ({"init_lora_weights": "orthogonal", "r": 3}, "'orthogonal' halves the rank, and 3 is odd"),
        ({"init_lora_weights": "orthogonal", "rank_pattern": {"q_proj": 5}}, "and 5 is odd"),
        ({"init_lora_weights": "eva", "target_parameters": ["w"]}, "'eva' does not reach lora_target_parameters"),
    ],
)
def test_wrong_settings_are_told_before_there_is_a_model(wrong, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        settings(**wrong)
    assert "\n" not in str(error.value)


def test_whole_floats_pefts_own_true_and_single_names_are_understood():
    made = settings(r=8.0, rank_pattern={"q_proj": 2.0}, init_lora_weights=True, modules_to_save="lm_head")
    assert (made.r, made.rank_pattern, made.init_lora_weights) == (8, {"q_proj": 2}, "default")
    assert {type(made.r), type(made.rank_pattern["q_proj"])} == {int}
    config = made.to_peft("CAUSAL_LM")
    assert (config.modules_to_save, config.init_lora_weights) == (["lm_head"], True)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"modules_to_save": ["lm_haed"]}, r"lora_modules_to_save: 'lm_haed' is no module .* mean 'lm_head'"),
        ({"modules_to_save": ["lm_head", "all-linear"]}, "lora_modules_to_save: 'all-linear' is no module"),
        ({"modules_to_save": ["layers"]}, "lora_modules_to_save: 'model.layers' is a ModuleList without weights"),
        ({"modules_to_save": ["rotary_emb"]}, "'model.rotary_emb' is a LlamaRotaryEmbedding without weights"),
        ({"target_modules": "(q_proj"}, r"lora_target_modules: '\(q_proj' is no regular expression .* list of names"),
        ({"target_modules": ".*q_prj"}, "lora_target_modules: '.*q_prj' is no module of LlamaForCausalLM"),
        ({"target_modules": ["mlp"]}, "'model.layers.0.mlp' is a LlamaMLP, and LoRA goes on linear, embedding"),
        ({"target_modules": ["norm"]}, "'model.norm' is a LlamaRMSNorm, and LoRA goes on"),
        ({"target_modules": ["all-linear", "q_proj"]}, "lora_target_modules: 'all-linear' stands alone"),
        ({"target_modules": ["q_proj", "lm_head"]}, "'lm_head' takes in the output head, which cannot have an adapter"),
        ({"target_modules": "lm_head"}, "the loss computes the head itself, from its weight: remove it"),
        ({"target_modules": r"lm_.*"}, r"'lm_\.\*' takes in the output head"),
    ],
)
def test_t7_names_are_held_against_the_model_before_it_is_changed(wrong, sentence):
    model = make_tiny_llama()
    with pytest.raises(UserError, match=sentence) as error:
        attach_lora(model, settings(**wrong))
    assert "\n" not in str(error.value)
    if "target_modules" in wrong:
        assert (
            "lm_head" not in str(error.value).partition("choose from" if "choose" in str(error.value) else "there")[2]
        )
    assert not hasattr(model, "peft_config")


def test_names_to_choose_from_are_those_that_can_be_used():
    with pytest.raises(UserError) as error:
        attach_lora(make_tiny_llama(), settings(target_modules=["lm_haed"]))
    assert str(error.value) == (
        "lora_target_modules: 'lm_haed' is no module of LlamaForCausalLM: choose from down_proj, embed_tokens, "
        "gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj, or write all-linear."
    )


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        ("q_proj", {"q_proj"}),
        (["ALL-linear"], None),
        (r".*\.[qk]_proj", {"q_proj", "k_proj"}),
        (None, {"q_proj", "v_proj"}),
    ],
)
def test_a_plain_text_is_a_name_if_there_is_one(targets, expected):
    model = attach_lora(make_tiny_llama(), settings(target_modules=targets))
    expected = expected or {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert {name.rpartition(".")[2] for name in layers_of(model)} == expected


def test_an_architecture_without_a_default_says_so():
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    model = SmolLM3ForCausalLM(SmolLM3Config(**sizes, num_attention_heads=4, num_key_value_heads=2, pad_token_id=2))
    with pytest.raises(UserError, match="PEFT has no default for a model of type 'smollm3': give names"):
        attach_lora(model, settings(target_modules=None))


def test_modules_to_save_are_trained_and_more_than_meant_is_told(caplog):
    model = attach_lora(make_tiny_llama(tied=False), settings(modules_to_save="lm_head"))
    assert any("lm_head" in name and p.requires_grad for name, p in model.named_parameters())
    assert "also the end of" not in caplog.text
    model = attach_lora(make_tiny_llama(), settings(modules_to_save=["norm"]))
    trained = {name for name, p in model.named_parameters() if p.requires_grad and "lora" not in name}
    assert any("input_layernorm" in name for name in trained)  # when this fails, PEFT has been mended
    assert "'norm' is also the end of input_layernorm, post_attention_layernorm, which PEFT trains" in caplog.text
    assert "write model.norm if" in caplog.text


def test_only_our_own_word_is_heard_of_a_pattern_that_matches_nothing(recwarn):
    with pytest.raises(UserError, match="lora_rank_pattern: 'v_prj' matches"):
        attach_lora(make_tiny_llama(), settings(rank_pattern={"v_prj": 2}))
    assert not [warning for warning in recwarn if "_pattern" in str(warning.message)]


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
    caplog.clear()
    with pytest.raises(UserError, match="too small for rank 20"):
        attach_lora(make_tiny_llama(), settings(init_lora_weights="pissa", dropout=0.05, r=20))
    assert not caplog.records
