"""ms-swift's flags and TRL's YAML by their meaning there, one case a trap."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_recipes.convert.answers import Config
from hf_recipes.convert.engine import Conversion, convert
from hf_recipes.convert.swift import SWIFT
from hf_recipes.convert.trl import TRL
from hf_recipes.core.errors import UserError


def swift(**values) -> Conversion:
    given = {"model": "org/model", "dataset": "org/data", "use_hf": True, **values}
    return convert(Config(given, Path("sw.sh"), lambda name: name if name == "here.jsonl" else None), SWIFT)


def trl(**values) -> Conversion:
    given = {"model_name_or_path": "org/model", "dataset_name": "org/data", **values}
    return convert(Config(given, Path("trl.yaml")), TRL)


def became(conversion: Conversion, key: str):
    return next(row for row in conversion.rows if row.key == key)


def test_swift_defaults_that_change_what_is_learned_are_written_down():
    # trainers/arguments.py, arguments/tuner_args.py: weight_decay 0.1, adam_beta2 0.95, cosine, no warm-up, batch 1,
    # steps of 16 rows, rank 8, all linear layers; rate 1e-4 for LoRA; no limit of length.
    assert swift().values == {
        "model_name_or_path": "org/model",
        "datasets": [{"path": "org/data"}],
        "method": "lora",
        "learning_rate": 1e-4,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0,
        "weight_decay": 0.1,
        "adam_beta2": 0.95,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "eval_share": 0,
        "max_length": None,
        "lora_r": 8,
        "lora_target_modules": ["all-linear"],
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"train_type": "full"}, {"method": "full", "learning_rate": 1e-5, "dtype": "bf16"}),
        ({"tuner_type": "full", "deepspeed": "zero2"}, {"method": "full", "strategy": "zero2", "dtype": None}),
        ({"quant_bits": 4, "quant_method": "bnb"}, {"method": "qlora"}),
        ({"per_device_train_batch_size": 4, "NPROC_PER_NODE": 2},
         {"num_processes": 2, "gradient_accumulation_steps": 2}),
        ({"target_modules": ["q_proj", "v_proj"]}, {"lora_target_modules": ["q_proj", "v_proj"]}),
        ({"loss_scale": "last_round"}, {"assistant_only_loss": True, "mask_history": True}),
        ({"truncation_strategy": "delete"}, {"overlong": "drop"}),
        ({"attn_impl": "flash_attn"}, {"attn_implementation": "flash_attention_2"}),
        ({"split_dataset_ratio": 0.01}, {"eval_share": 0.01}),
        ({"val_dataset": ["here.jsonl"]},
         {"datasets": [{"path": "org/data"}, {"path": "here.jsonl", "eval_share": 1}], "eval_share": None}),
        ({"dataset": ["org/a:en#500", "here.jsonl#7"]},
         {"datasets": [{"path": "org/a", "name": "en", "split": "train[:500]"}, {"path": "here.jsonl"}]}),
        ({"columns": {"q": "query", "a": "response"}},
         {"datasets": [{"path": "org/data", "columns": {"instruction": "q", "output": "a"}}]}),
        ({"lorap_lr_ratio": 16}, {"loraplus_lr_ratio": 16}),
    ],
)  # fmt: skip
def test_a_swift_key_means_the_same_here(values, expected):
    recipe = swift(**values).values
    assert {key: recipe.get(key) for key in expected} == expected


def test_names_of_modelscope_are_told_unless_the_hub_is_meant():
    assert "ModelScope" in became(swift(use_hf=False), "dataset[0]").note
    assert "ModelScope" not in became(swift(), "dataset[0]").note


@pytest.mark.parametrize("values", [{"rlhf_type": "dpo"}, {"task_type": "seq_cls"}, {"tuner_type": "adalora"}])
def test_other_kinds_of_training_are_refused(values):
    with pytest.raises(UserError, match=r"sw\.sh: .*"):
        swift(**values)


def test_trl_defaults_that_change_what_is_learned_are_written_down():
    # ModelConfig: use_peft False; SFTConfig: assistant_only_loss False, linear, no warm-up; no eval set.
    assert trl().values == {
        "model_name_or_path": "org/model",
        "datasets": [{"path": "org/data"}],
        "method": "full",
        "lr_scheduler_type": "linear",
        "warmup_steps": 0,
        "eval_share": 0,
        "assistant_only_loss": False,
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"use_peft": True}, {"method": "lora", "learning_rate": 2e-5}),
        ({"use_peft": True, "load_in_4bit": True, "lora_r": 4}, {"method": "qlora", "lora_r": 4}),
        ({"lora_r": 4}, {"method": "full", "lora_r": None}),
        ({"eval_strategy": "steps", "dataset_config": "en"},
         {"datasets": [{"path": "org/data", "name": "en"},
                       {"path": "org/data", "name": "en", "split": "test", "eval_share": 1}]}),
        ({"completion_only_loss": True}, {"assistant_only_loss": True}),
        ({"max_seq_length": 512}, {"max_length": 512}),
        ({"dataset_name": None, "datasets": [{"path": "a", "split": "train", "fraction": None}],
          "test_split_size": 0.1},
         {"datasets": [{"path": "a"}], "eval_share": 0.1}),
        ({"gradient_checkpointing": True}, {"activation_checkpointing": True}),
    ],
)  # fmt: skip
def test_a_trl_key_means_the_same_here(values, expected):
    recipe = trl(**values).values
    assert {key: recipe.get(key) for key in expected} == expected


@pytest.mark.parametrize("files", ["a.jsonl", ["a.jsonl", "b.jsonl"]])
def test_a_reader_of_trl_with_files_becomes_the_files(files):
    conversion = trl(datasets=[{"path": "json", "data_files": files, "split": "train"}])
    names = files if isinstance(files, list) else [files]
    assert conversion.values["datasets"] == [{"path": name} for name in names]


def test_a_reader_of_trl_without_files_is_told():
    assert became(trl(dataset_name="json"), "dataset_name").note == "a kind of file, not data: name the file itself"


def at(directory, **rows):
    """Files of rows in a directory, and a configuration in it that finds them."""
    for name, row in rows.items():
        (directory / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    return directory / "config.yaml", lambda name: name if (directory / name).is_file() else None


def test_rows_in_swifts_own_format_are_read_by_their_columns(tmp_path):
    path, find = at(tmp_path, own={"query": "a", "response": "b"}, ours={"instruction": "a", "output": "b"})
    given = {"model": "org/model", "dataset": ["own.jsonl#60", "ours.jsonl"], "use_hf": True}
    conversion = convert(Config(given, path, find), SWIFT)
    assert conversion.values["datasets"] == [
        {"path": "own.jsonl", "columns": {"instruction": "query", "output": "response"}},
        {"path": "ours.jsonl"},
    ]
    (row,) = (row for row in conversion.rows if row.key == "dataset[own.jsonl#60]")
    assert row.kind == "none" and "cut it to 60 rows beforehand" in row.note


def test_packing_up_to_a_given_length_is_the_same_and_not_told():
    def told(**values):
        return [default.note for default in swift(packing=True, **values).defaults if "packs up to" in default.note]

    assert told() and not told(max_length=2048)


PAIR, CHAT = {"prompt": "a", "completion": "b"}, {"messages": [{"role": "user", "content": "a"}]}
TURNS = {"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}


@pytest.mark.parametrize(
    ("rows", "completion_only", "joined"),
    [
        ({"a": PAIR}, True, True),
        ({"a": TURNS}, True, False),
        ({"a": CHAT}, False, False),
        ({"a": PAIR, "b": CHAT}, False, True),
        ({}, False, True),
    ],
)
def test_what_trl_learns_of_rows_that_are_here(rows, completion_only, joined, tmp_path):
    path, find = at(tmp_path, **rows)
    given = {"model_name_or_path": "org/model", "datasets": [{"path": f"{name}.jsonl"} for name in rows or ("org",)]}
    conversion = convert(Config(given, path, find), TRL)
    assert conversion.values["assistant_only_loss"] is completion_only
    assert any("chat template is put around them" in default.note for default in conversion.defaults) is joined


@pytest.mark.parametrize(
    ("values", "completion_only"),
    [
        ({"dataset_name": "a.jsonl"}, True),
        ({"datasets": [{"path": "json", "data_files": "a.jsonl"}]}, True),
        ({"datasets": [{"path": "a.jsonl"}, {"path": "org/data"}]}, False),  # nothing is known of the second
        ({"dataset_name": "a.jsonl", "assistant_only_loss": False}, True),
        ({"dataset_name": "a.jsonl", "assistant_only_loss": False, "completion_only_loss": False}, False),
        ({"dataset_name": "a.jsonl", "completion_only_loss": False}, False),
        ({"dataset_name": "org/data", "assistant_only_loss": False}, False),
    ],
)
def test_trl_learns_the_completion_alone_unless_told_otherwise(values, completion_only, tmp_path):
    path, find = at(tmp_path, a=PAIR)
    conversion = convert(Config({"model_name_or_path": "org/model", **values}, path, find), TRL)
    assert conversion.values["assistant_only_loss"] is completion_only
    assert any("chat template is put around them" in default.note for default in conversion.defaults)
