from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.key_table import live_key_table, load_key_table
from hf_recipes.recipe.validate import check_keys


def check(**values):
    return check_keys(values, load_key_table(), lambda key: f"r.yaml line 7 ({key})")


def test_the_stored_table_is_the_live_one():
    """The help and the quick check of keys come from stored data; the dataclasses are the truth."""
    assert load_key_table() == {name: as_stored(spec) for name, spec in live_key_table().items()}


def as_stored(spec):
    from dataclasses import replace

    from hf_recipes.core.files import json_safe

    return replace(spec, default=json_safe(spec.default))


@pytest.mark.parametrize(
    ("key", "given", "taken"),
    [
        ("learning_rate", 1, 1.0),
        ("save_strategy", "no", "no"),
        ("save_strategy", False, "no"),
        ("verify_checkpoints", "off", "off"),
        ("verify_checkpoints", False, "off"),
        ("gradient_checkpointing", "off", False),
        ("gradient_checkpointing", "on", True),
        ("dtype", "bf16", "bfloat16"),
        ("dtype", "torch.float16", "float16"),
        ("dtype", "half", "float16"),
        ("per_device_train_batch_size", 4.0, 4),
        ("lora_target_modules", "all-linear", ["all-linear"]),
        ("max_length", None, None),
        ("run_name", 5, "5"),
        ("lr_scheduler_kwargs", {"min_lr_rate": 0.1}, {"min_lr_rate": 0.1}),
        ("report_to", "none", "none"),
    ],
)
def test_values_are_brought_into_their_type(key, given, taken):
    assert check(**{key: given}) == {key: taken}


@pytest.mark.parametrize(
    ("key", "given", "sentence"),
    [
        ("learning_rat", 1e-3, "unknown key 'learning_rat' (did you mean 'learning_rate'?)"),
        ("clean.duplicates", "exact", "unknown key 'clean.duplicates' (in a file write clean: {duplicates: …})"),
        ("columns", {}, "unknown key 'columns' (it belongs to an entry of datasets: [{path: …, columns: …}])"),
        ("learning_rate", "fast", "'learning_rate' is 'fast': give a number"),
        ("per_device_train_batch_size", 2.5, "give a whole number"),
        ("per_device_train_batch_size", True, "give a whole number"),
        ("method", "qlorra", "'method' is 'qlorra' (did you mean 'qlora'?): give one of full, partial, lora"),
        ("dtype", "bf61", "'bf61' is not a dtype"),
        ("padding_free", True, "'padding_free: True' is not supported"),
        ("load_in_4bit", True, "write `method: qlora`"),
        ("learning_rate", None, "'learning_rate' is empty"),
        ("datasets", 5, "'datasets' is 5: give a list"),
        ("bf16", "maybe", "give true or false"),
    ],
)
def test_u1_a_wrong_key_or_value_is_one_sentence_with_place_and_cure(key, given, sentence):
    with pytest.raises(UserError) as error:
        check(**{key: given})
    assert sentence in str(error.value)
    assert "r.yaml line 7" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", "BF16", "torch.bfloat16"])
def test_t1_dtype_aliases_are_understood_everywhere(dtype):
    assert check(dtype=dtype, bnb_4bit_quant_storage=dtype) == {
        "dtype": "bfloat16",
        "bnb_4bit_quant_storage": "bfloat16",
    }
