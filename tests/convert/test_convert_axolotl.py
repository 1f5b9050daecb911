"""Axolotl's keys by their meaning there (its schemas and trainer builder), one case a trap."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_recipes.convert.answers import Config
from hf_recipes.convert.axolotl import AXOLOTL
from hf_recipes.convert.engine import Conversion, convert
from hf_recipes.core.errors import UserError

LORA = {"base_model": "org/model", "adapter": "lora", "datasets": [{"path": "org/data", "type": "alpaca"}]}
FULL = {key: value for key, value in LORA.items() if key != "adapter"}


def converted(base=LORA, found=(), **values) -> Conversion:
    given = {**base, **values}
    return convert(Config(given, Path("ax.yaml"), lambda name: name if name in found else None), AXOLOTL)


def became(conversion: Conversion, key: str):
    return next(row for row in conversion.rows if row.key == key)


def source(entry, **values):
    return converted(datasets=[entry], **values).values["datasets"][0]


def test_defaults_that_change_what_is_learned_are_written_down():
    # schemas/: num_epochs 1, micro_batch_size 1, sequence_len 512, lr_scheduler cosine (to 0), val_set_size 0,
    # lora_dropout 0.0; ours: 3, 8, 1024, cosine to a tenth, 0.1, 0.05.
    assert converted().values == {
        "model_name_or_path": "org/model",
        "method": "lora",
        "datasets": [{"path": "org/data", "format": "alpaca"}],
        "max_length": 512,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 1,
        "lr_scheduler_type": "cosine",
        "eval_share": 0,
        "lora_dropout": 0,
    }


@pytest.mark.parametrize(
    ("values", "method", "eight"),
    [
        ({}, "lora", False),
        ({"adapter": "qlora", "load_in_4bit": True}, "qlora", False),
        ({"load_in_4bit": True}, "qlora", False),
        ({"load_in_8bit": True}, "qlora", True),
        ({"peft_use_dora": True}, "dora", False),
        ({"peft_use_dora": True, "load_in_4bit": True}, "qlora", False),
    ],
)
def test_the_method_is_told_by_several_keys_together(values, method, eight):
    recipe = converted(**values).values
    assert recipe["method"] == method
    assert recipe.get("load_in_8bit", False) is eight


def test_without_an_adapter_all_weights_are_trained_in_bf16_and_lora_keys_do_nothing():
    conversion = converted(FULL, lora_r=8, load_in_8bit=True)
    assert conversion.values["method"] == "full"
    assert conversion.values["dtype"] == "bf16"  # loaders/model.py loads in cfg.torch_dtype, bf16 for bf16: auto
    assert {"lora_r", "load_in_8bit", "lora_dropout"}.isdisjoint(conversion.values)
    assert became(conversion, "lora_r").kind == "same"


@pytest.mark.parametrize(
    "values",
    [
        {"deepspeed": "deepspeed_configs/zero2.json"},
        {"fsdp_config": {"fsdp_version": 2}},
        {"bf16": False},
        {"fp16": True, "bf16": False},
    ],
)
def test_masters_that_are_kept_by_the_strategy_or_other_dtypes_need_no_bf16_weights(values):
    assert converted(FULL, **values).values.get("dtype") != "bf16"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"warmup_ratio": 0.1}, {"warmup_steps": 0.1}),
        ({"warmup_steps": 10}, {"warmup_steps": 10}),
        ({"warmup_steps": 10, "warmup_ratio": 0.1}, {"warmup_steps": 10}),
        ({"lr_scheduler": "cosine", "cosine_min_lr_ratio": 0.1},
         {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}}),
        ({"lr_scheduler": "rex"}, {"lr_scheduler_type": "cosine"}),
        ({"val_set_size": 0.05}, {"eval_share": 0.05}),
        # 1 / (4 evaluations × 3 epochs), a share of the run (utils/config/__init__.py)
        ({"val_set_size": 0.05, "evals_per_epoch": 4, "num_epochs": 3},
         {"eval_strategy": "steps", "eval_steps": 0.083333}),
        ({"saves_per_epoch": 1}, {"save_strategy": "epoch"}),
        ({"saves_per_epoch": 2}, {"save_strategy": "steps", "save_steps": 0.5}),
        ({"save_steps": 50, "save_strategy": "epoch"}, {"save_strategy": "steps", "save_steps": 50}),
        ({"learning_rate": "2e-4"}, {"learning_rate": 2e-4}),
        ({"optimizer": "adamw_bnb_8bit"}, {"optim": "adamw_bnb_8bit"}),
        ({"train_on_inputs": True}, {"assistant_only_loss": False}),
        ({"train_on_inputs": "no"}, {"assistant_only_loss": True}),
        ({"lora_target_linear": True, "lora_target_modules": ["q_proj"]}, {"lora_target_modules": ["all-linear"]}),
        ({"lora_target_modules": "q_proj,v_proj"}, {"lora_target_modules": ["q_proj", "v_proj"]}),
        ({"flash_attention": True, "sdp_attention": None}, {"attn_implementation": "flash_attention_2"}),
        ({"gradient_checkpointing": "offload"}, {"activation_checkpointing": True, "activation_offloading": True}),
        ({"sample_packing": True}, {"packing": True}),
        ({"dataset_exact_deduplication": True}, {"clean": {"duplicates": "exact"}}),
        ({"early_stopping_patience": 3}, {"watch": {"overfit_patience": 3, "overfit_stop": True}}),
        ({"wandb_project": "p", "wandb_name": "run-1"}, {"report_to": "wandb", "run_name": "run-1"}),
        ({"hub_model_id": "me/m"}, {"hub_model_id": "me/m", "push_to_hub": True, "hub_private_repo": True}),
        ({"context_parallel_size": 4, "deepspeed": "zero3.json"}, {"strategy": "cp", "context_parallel_size": 4}),
        ({"fsdp_config": {"activation_checkpointing": True}, "gradient_checkpointing": False},
         {"strategy": "fsdp", "activation_checkpointing": True}),
        ({"cut_cross_entropy": True}, {"loss_kernel": "cce"}),
    ],
)  # fmt: skip
def test_a_key_means_the_same_here(values, expected):
    recipe = converted(**values).values
    assert {key: recipe.get(key) for key in expected} == expected


def test_a_number_of_eval_rows_is_left_to_the_user():
    conversion = converted(val_set_size=500)
    assert became(conversion, "val_set_size").kind == "none"
    assert "eval_share" not in conversion.values


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"path": "org/d", "type": "alpaca_chat.load_qa"},
         {"path": "org/d", "format": "alpaca", "columns": {"instruction": "question", "output": "answer"}}),
        ({"path": "org/d", "type": "chat_template", "field_messages": "conversations", "name": "x",
          "split": "train[:9]"},
         {"path": "org/d", "format": "messages", "columns": {"messages": "conversations"}, "name": "x",
          "split": "train[:9]"}),
        ({"path": "org/d", "type": "sharegpt", "conversation": "chatml"}, {"path": "org/d", "format": "sharegpt"}),
        ({"path": "org/d", "type": "completion", "field": "body"},
         {"path": "org/d", "format": "text", "columns": {"text": "body"}}),
        ({"path": "org/d", "type": {"field_instruction": "q", "field_output": "a", "format": "[INST] {instruction}"}},
         {"path": "org/d", "format": "alpaca", "columns": {"instruction": "q", "output": "a"}}),
        ({"path": "json", "data_files": "here.jsonl", "type": "alpaca"}, {"path": "here.jsonl", "format": "alpaca"}),
        ({"path": "here.jsonl", "ds_type": "json", "split": "train", "type": "alpaca"},
         {"path": "here.jsonl", "format": "alpaca"}),
    ],
)  # fmt: skip
def test_a_source_keeps_its_place_format_and_columns(entry, expected):
    conversion = converted(datasets=[entry], found=("here.jsonl",))
    assert conversion.values["datasets"] == [expected]
    keys = {row.key for row in conversion.rows if row.key.startswith("datasets[0].")}
    assert {key.split(".")[1] for key in keys} == set(entry)


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"message_property_mappings": {"role": "from", "content": "value"}}, "same"),
        ({"message_property_mappings": {"role": "speaker", "content": "text"}}, "none"),
        ({"message_field_role": "from"}, "same"),
        ({"roles_to_train": ["assistant"]}, "same"),
        ({"roles_to_train": ["user", "assistant"]}, "none"),
        ({"train_on_eos": "turn"}, "same"),
        ({"train_on_eos": "last"}, "none"),
        ({"message_field_training": "train"}, "same"),
        ({"message_field_training": "learn_me"}, "none"),
        ({"chat_template": "tokenizer_default"}, "same"),
        ({"chat_template": "llama3"}, "none"),
        ({"revision": "abc"}, "none"),
        ({"trust_remote_code": False}, "same"),
    ],
)
def test_what_a_source_says_about_turns_is_the_same_or_told(part, kind):
    conversion = converted(datasets=[{"path": "org/d", "type": "chat_template", **part}])
    assert became(conversion, f"datasets[0].{next(iter(part))}").kind.startswith(kind)


def test_several_files_of_one_entry_become_several_sources():
    files = ["a.jsonl", "b.jsonl"]
    paths = [each["path"] for each in converted(datasets=[{"path": "json", "data_files": files}]).values["datasets"]]
    assert paths == files


def test_test_datasets_are_given_eval_sets():
    conversion = converted(test_datasets=[{"path": "org/held_out", "type": "alpaca", "split": "test"}])
    assert conversion.values["datasets"] == [
        {"path": "org/data", "format": "alpaca"},
        {"path": "org/held_out", "format": "alpaca", "split": "test", "eval_share": 1},
    ]
    assert "eval_share" not in conversion.values
    assert became(conversion, "test_datasets[0].path").kind == "taken"


def test_plain_text_is_cut_into_pieces_as_there():
    assert converted(datasets=[{"path": "org/text", "type": "completion"}]).values["overlong"] == "split"
    assert "overlong" not in converted().values


def test_pretraining_text_streams():
    recipe = converted(FULL, datasets=None, pretraining_dataset=[{"path": "c4", "name": "en"}], max_steps=9).values
    assert recipe["datasets"] == [{"path": "c4", "name": "en", "format": "text"}]
    assert recipe["streaming"] is True


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"rl": "dpo"}, "'rl: dpo' trains on preferences"),
        ({"reward_model": True}, "a reward model"),
        ({"adapter": "llama-adapter"}, "adapter 'llama-adapter' has no counterpart"),
        ({"model_type": "AutoModelForSequenceClassification"}, "hf-recipes classify"),
        ({"datasets": [{"type": "alpaca"}]}, "entry 1 of the data has no path"),
        ({"learning_rate": "fast"}, "'learning_rate' is 'fast': give a number"),
    ],
)
def test_what_cannot_be_a_recipe_is_refused(values, sentence):
    with pytest.raises(UserError, match=sentence):
        converted(**values)


def test_rl_switched_off_is_no_reason_to_refuse():
    assert became(converted(rl=False), "rl").kind == "same"


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ({"lora_target_modules": r"model\.layers\.(\d+)\.mlp"}, "none"),
        ({"lora_target_modules": ["lm_head"], "lora_target_linear": True}, "none"),
        ({"lora_target_modules": ["q_proj"], "lora_target_linear": True}, "same"),
    ],
)
def test_target_modules_that_no_list_can_say_are_told(values, kind):
    assert became(converted(**values), "lora_target_modules").kind == kind


def test_an_adapter_that_is_switched_off_is_none():
    conversion = converted(adapter=False)
    assert conversion.values["method"] == "full"
    assert became(conversion, "adapter").kind == "same"
