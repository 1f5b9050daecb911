from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.same_run import check_same_model, record_of_run, tell_other_data

BEFORE = {
    "method": "lora",
    "model_name_or_path": "some/model",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_modules": ["q_proj", "v_proj"],
}


@pytest.fixture
def checkpoint(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"recipe": BEFORE}))
    return tmp_path / "checkpoint-6"


def check(checkpoint, **changes):
    check_same_model(Recipe("test", {**BEFORE, **changes}, frozenset()), checkpoint)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "full"}, "with method lora, the recipe says full: set method back"),
        ({"model_name_or_path": "other"}, "set model_name_or_path back"),
        ({"lora_r": 4}, "with lora_r 8, the recipe says 4"),
        ({"lora_alpha": 8}, "set lora_alpha back"),
        ({"lora_target_modules": ["all-linear"]}, "set lora_target_modules back"),
        ({"init_lora_weights": "pissa"}, "with init_lora_weights default, the recipe says pissa"),
        ({"loraplus_lr_ratio": 4.0}, "set loraplus_lr_ratio back"),
        ({"use_rslora": True}, "set use_rslora back"),
    ],
)
def test_another_model_is_refused_in_the_recipes_words(changes, sentence, checkpoint):
    with pytest.raises(UserError, match=sentence):
        check(checkpoint, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lora_dropout": 0.0, "learning_rate": 1e-5, "max_steps": 100},
        {"lora_target_modules": ["v_proj", "q_proj"], "init_lora_weights": "default", "lora_rank_pattern": {}},
        {"bnb_4bit_quant_type": "fp4", "trainable_layers": 3},  # of other methods
    ],
)
def test_what_may_change_may_change(changes, checkpoint):
    check(checkpoint, **changes)


def test_partial_layers_and_quantisation_are_part_of_the_model(tmp_path):
    """A layer's optimizer state must not go to another layer of the same shape."""
    for before, now in (
        ({"method": "partial", "trainable_layers": 1}, {"method": "partial", "trainable_layers": -1}),
        ({"method": "qlora"}, {"method": "qlora", "load_in_8bit": True}),
    ):
        (tmp_path / "run.json").write_text(json.dumps({"recipe": before}))
        with pytest.raises(UserError, match="start anew with another output_dir"):
            check_same_model(Recipe("test", now, frozenset()), tmp_path / "checkpoint-1")


def test_a_checkpoint_without_a_run_is_not_compared(tmp_path):
    check_same_model(Recipe("test", BEFORE, frozenset()), tmp_path / "checkpoint-1")
    check_same_model(Recipe("test", BEFORE, frozenset()), None)


@pytest.mark.parametrize("content", ["[]", "5", '{"recipe": 5}', '{"schema": 1}', "{", ""])
def test_a_damaged_record_is_told_and_nothing_is_compared_with_it(content, checkpoint, caplog):
    (checkpoint.parent / "run.json").write_text(content)
    assert record_of_run(checkpoint.parent) == {}
    check(checkpoint, method="full")
    assert "run.json is damaged" in caplog.text


def test_other_data_under_the_same_name_are_told(tmp_path, caplog):
    run = RunDirectory(tmp_path)
    tell_other_data(run, {"fingerprint": "b"})  # no earlier attempt
    run.write(run.data_json, {"fingerprint": "a"})
    tell_other_data(run, {"fingerprint": "a"})
    assert caplog.text == ""
    tell_other_data(run, {"fingerprint": "b"})
    assert "The data are not those this run has trained on so far" in caplog.text
