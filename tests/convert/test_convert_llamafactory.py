"""LLaMA-Factory's keys by their meaning there (hparams/, data/parser.py), one case a trap."""

from __future__ import annotations

from pathlib import Path

import pytest

from hf_recipes.convert.answers import Config
from hf_recipes.convert.engine import Conversion, convert
from hf_recipes.convert.llamafactory import LLAMAFACTORY
from hf_recipes.core.errors import UserError

INFO = {
    "own": {"file_name": "own.json"},
    "renamed": {"file_name": "own.json", "columns": {"prompt": "q", "response": "a", "system": "sys"}},
    "talks": {"file_name": "talks.json", "formatting": "sharegpt", "columns": {"messages": "chat", "tools": "tools"}},
    "openai": {"hf_hub_url": "org/chats", "subset": "en", "split": "test", "formatting": "sharegpt",
               "columns": {"messages": "messages"}, "tags": {"role_tag": "role", "content_tag": "content"}},
    "odd": {"file_name": "own.json", "formatting": "sharegpt", "tags": {"role_tag": "who", "content_tag": "what"}},
    "prefs": {"file_name": "own.json", "ranking": True, "columns": {"prompt": "q", "chosen": "c", "rejected": "r"}},
    "text": {"file_name": "text.jsonl", "columns": {"prompt": "body"}},
    "far": {"ms_hub_url": "org/elsewhere"},
}  # fmt: skip


def converted(info=INFO, **values) -> Conversion:
    given = {"model_name_or_path": "org/model", "dataset": "own", **values}
    found = {"data/own.json", "data/talks.json", "data/text.jsonl", "data/loose.jsonl"}
    config = Config(
        given,
        Path("lf.yaml"),
        lambda name: f"../{name}" if name in found else None,
        lambda name: info if name == "data/dataset_info.json" else None,
    )
    return convert(config, LLAMAFACTORY)


def became(conversion: Conversion, key: str):
    return next(row for row in conversion.rows if row.key == key)


def test_defaults_that_change_what_is_learned_are_written_down():
    # hparams/: cutoff_len 2048, lora_rank 8, lora_alpha 2 × rank, lora_dropout 0, lora_target all, val_size 0; of
    # TrainingArguments: learning rate 5e-5, linear, no warm-up.
    assert converted().values == {
        "model_name_or_path": "org/model",
        "datasets": [{"path": "../data/own.json", "format": "alpaca"}],
        "method": "lora",
        "max_length": 2048,
        "learning_rate": 5e-5,
        "lr_scheduler_type": "linear",
        "warmup_steps": 0,
        "eval_share": 0,
        "lora_r": 8,
        "lora_alpha": 16,
        "lora_dropout": 0,
        "lora_target_modules": ["all-linear"],
    }


def test_alpha_follows_the_rank_given():
    assert converted(lora_rank=32).values["lora_alpha"] == 64


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"finetuning_type": "full", "lora_rank": 8, "bf16": True}, {"method": "full", "lora_r": None, "dtype": None}),
        ({"finetuning_type": "full", "pure_bf16": True}, {"method": "full", "dtype": "bf16"}),
        ({"finetuning_type": "freeze"}, {"method": "partial", "trainable_layers": 2}),
        ({"finetuning_type": "freeze", "freeze_trainable_layers": -3, "freeze_extra_modules": "lm_head"},
         {"method": "partial", "trainable_layers": -3, "trainable_modules": ["lm_head"]}),
        ({"quantization_bit": 4}, {"method": "qlora", "load_in_8bit": None}),
        ({"quantization_bit": 8}, {"method": "qlora", "load_in_8bit": True}),
        ({"use_dora": True}, {"method": "dora"}),
        ({"pissa_init": True}, {"init_lora_weights": "pissa_niter_16"}),
        ({"pissa_init": True, "pissa_iter": -1}, {"init_lora_weights": "pissa"}),
        ({"lora_target": "q_proj,v_proj", "additional_target": "embed_tokens"},
         {"lora_target_modules": ["q_proj", "v_proj"], "lora_modules_to_save": ["embed_tokens"]}),
        ({"train_on_prompt": True}, {"assistant_only_loss": False}),
        ({"mask_history": True}, {"mask_history": True}),
        ({"neat_packing": True, "packing": False}, {"packing": True}),
        ({"val_size": 0.1}, {"eval_share": 0.1}),
        ({"warmup_ratio": 0.1, "warmup_steps": 0}, {"warmup_steps": 0.1}),
        ({"warmup_ratio": 0.1, "warmup_steps": 20}, {"warmup_steps": 20}),
        ({"flash_attn": "fa2"}, {"attn_implementation": "flash_attention_2"}),
        ({"flash_attn": "auto"}, {"attn_implementation": None}),
        ({"disable_gradient_checkpointing": True}, {"activation_checkpointing": False}),
        ({"deepspeed": "examples/deepspeed/ds_z3_config.json"}, {"strategy": "zero3"}),
        ({"enable_liger_kernel": True}, {"loss_kernel": "liger"}),
        ({"group_by_length": True}, {"train_sampling_strategy": "group_by_length"}),
        ({"eval_strategy": False}, {"eval_strategy": "no"}),  # YAML 1.1 reads `no` as false
        ({"stage": "pt", "dataset": "text"},
         {"datasets": [{"path": "../data/text.jsonl", "format": "text", "columns": {"text": "body"}}],
          "assistant_only_loss": False, "packing": True, "overlong": "split"}),
        ({"report_to": "none"}, {"report_to": "none"}),
    ],
)  # fmt: skip
def test_a_key_means_the_same_here(values, expected):
    recipe = converted(**values).values
    assert {key: recipe.get(key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "expected", "told"),
    [
        ("renamed", {"path": "../data/own.json", "format": "alpaca",
                     "columns": {"instruction": "q", "output": "a", "system": "sys"}}, "no query"),
        ("talks", {"path": "../data/talks.json", "format": "sharegpt", "columns": {"conversations": "chat"}}, ""),
        ("openai", {"path": "org/chats", "name": "en", "split": "test", "format": "messages"}, ""),
        ("odd", {"path": "../data/own.json", "format": "sharegpt"}, "rename who and what"),
        ("prefs", {"path": "../data/own.json", "format": "alpaca", "columns": {"instruction": "q"}}, "preferences"),
        ("far", {"path": "org/elsewhere", "format": "alpaca"}, "another hub"),
    ],
)  # fmt: skip
def test_a_name_is_looked_up_in_dataset_info(name, expected, told):
    conversion = converted(dataset=name)
    assert conversion.values["datasets"] == [expected]
    assert told in became(conversion, f"dataset[{name}]").note


def test_without_dataset_info_the_path_is_one_that_fails_clearly_and_that_is_told():
    conversion = converted(info=None, dataset="lost,loose")
    paths = [source["path"] for source in conversion.values["datasets"]]
    assert paths == ["data/lost.json", "../data/loose.jsonl"]
    row = became(conversion, "dataset[lost]")
    assert (row.kind, row.value) == ("none", "lost")
    assert "data/dataset_info.json was not found" in row.note


def test_eval_datasets_are_given_eval_sets():
    recipe = converted(eval_dataset="talks").values
    assert [source.get("eval_share") for source in recipe["datasets"]] == [None, 1]
    assert "eval_share" not in recipe


def test_max_samples_is_a_split_on_the_hub_and_has_no_counterpart_for_files():
    on_hub = converted(dataset="openai", max_samples=100)
    assert on_hub.values["datasets"][0]["split"] == "test[:100]"
    assert became(on_hub, "max_samples").kind == "same"
    assert became(converted(max_samples=100), "max_samples").kind == "none"


def test_a_number_of_eval_rows_is_left_to_the_user():
    conversion = converted(val_size=500)
    assert became(conversion, "val_size").kind == "none"
    assert "eval_share" not in conversion.values


def test_its_template_table_is_told_with_what_to_do():
    row = became(converted(template="qwen"), "template")
    assert row.kind == "none"
    assert "chat_template_path" in row.note


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"stage": "dpo"}, "stage 'dpo' trains on preferences"),
        ({"finetuning_type": "oft"}, "finetuning_type 'oft' has no counterpart"),
        ({"train_dataset": "x.yaml"}, "v1"),
    ],
)
def test_what_cannot_be_a_recipe_is_refused(values, sentence):
    with pytest.raises(UserError, match=sentence):
        converted(**values)
