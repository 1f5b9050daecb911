"""Each key is accounted for exactly once, whatever the configuration; what comes out is a recipe that loads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_recipes.convert.answers import Config, none, rename, same, taken
from hf_recipes.convert.engine import Default, Tool, convert
from hf_recipes.convert.recipe_text import recipe_text, yaml_value
from hf_recipes.convert.table import conversion_json, conversion_text
from hf_recipes.convert.tools import TOOLS
from hf_recipes.convert.trainer_keys import OPTIMIZERS, SAME_NAMES, SCHEDULERS
from hf_recipes.core.errors import UserError
from hf_recipes.recipe.key_table import load_key_table
from hf_recipes.recipe.validate import check_keys
from hf_recipes.recipe.yaml_lines import parse_scalar

FILE = Path("theirs.yaml")
MADE_UP = Tool(
    "made_up",
    "Made-up",
    rules={
        "lr": rename("learning_rate"),
        "rate": rename("learning_rate"),
        "old": lambda value, config: none("write it yourself"),
        "fine": lambda value, config: same("as here"),
        "w1": lambda value, config: taken({"watch": {"samples": value}}),
        "w2": lambda value, config: taken({"watch": {"sample_tokens": value}}),
    },
    telling=frozenset(),
    defaults=lambda config, recipe: [Default({"learning_rate": 1.0}, "theirs"), Default({}, "only told")],
    refuse=lambda config: None,
    families={r"gone_.*": lambda value, config: none("gone")},
)


def made(**values):
    return convert(Config(values, FILE), MADE_UP)


def test_every_kind_of_answer_has_its_row():
    conversion = made(lr=2.0, old=1, fine=1, gone_x=1, lrr=3, empty=None)
    assert [(row.key, row.kind) for row in conversion.rows] == [
        ("lr", "taken"), ("old", "none"), ("fine", "same"), ("gone_x", "none"), ("lrr", "unknown"), ("empty", "same"),
    ]  # fmt: skip
    assert conversion.values == {"learning_rate": 2.0}
    assert "did you mean 'lr'" in conversion.of_kind("unknown")[0].note


def test_a_default_is_written_only_where_the_file_says_nothing():
    assert made(fine=1).values == {"learning_rate": 1.0}
    assert [default.note for default in made(lr=2.0).defaults] == ["only told"]


def test_two_keys_that_say_different_things_are_an_error_and_mappings_are_joined():
    with pytest.raises(UserError, match="'lr' and 'rate' both decide learning_rate, 1 and 2: keep one"):
        made(lr=1, rate=2)
    assert made(lr=1, rate=1).values == {"learning_rate": 1}
    assert made(w1=3, w2=9, lr=1).values["watch"] == {"samples": 3, "sample_tokens": 9}


def test_secrets_are_not_shown_and_names_of_tokens_are():
    conversion = convert(Config({"hub_token": "hf_abc", "swanlab_api_key": "k"}, FILE), TOOLS["llamafactory"])
    told = conversion_text(conversion) + str(conversion_json(conversion, "x")) + recipe_text(conversion, "a", "b")
    assert "hf_abc" not in told
    assert "k" not in [row.value for row in conversion.rows]
    special = convert(Config({"special_tokens": {"pad_token": "<pad>"}}, FILE), TOOLS["axolotl"])
    assert special.rows[0].key == "special_tokens.pad_token"
    assert special.rows[0].value == "<pad>"


def test_names_that_are_passed_on_are_keys_here():
    table = load_key_table()
    assert set(SAME_NAMES) <= set(table)
    assert set(OPTIMIZERS) == set(table["optim"].choices)
    assert set(SCHEDULERS) <= set(table["lr_scheduler_type"].choices)


VALUES = st.sampled_from(
    [None, True, False, 0, 1, 4, 8, 64, 0.1, 0.5, 2e-4, "auto", "none", "lora", "full", "no", "epoch", "a,b", "zero2",
     "cosine", "sdpa", "adamw_torch", ["a", "b"], {"offload_params": True}, "drop", "delete", "bfloat16", "all"]
)  # fmt: skip
DATA = {
    "axolotl": {"base_model": "org/model", "datasets": [{"path": "org/data", "type": "alpaca", "split": "train[:9]"}]},
    "llamafactory": {"model_name_or_path": "org/model", "dataset": "a,b"},
    "swift": {"model": "org/model", "dataset": ["org/data#5", "org/other:sub"]},
    "trl": {"model_name_or_path": "org/model", "dataset_name": "org/data"},
}


@pytest.mark.parametrize("name", TOOLS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_configuration_is_refused_in_a_sentence_or_accounted_for_whole(name, data):
    tool = TOOLS[name]
    drawn = data.draw(st.dictionaries(st.sampled_from([*tool.rules, "no_such_key"]), VALUES, max_size=12))
    values = {**drawn, **DATA[name]}
    try:
        conversion = convert(Config(values, FILE), tool)
    except UserError as error:
        assert str(error).startswith(str(FILE))
        return
    top = Counter(row.key.split(".")[0].split("[")[0] for row in conversion.rows)
    assert set(top) == set(values)
    assert len({row.key for row in conversion.rows}) == len(conversion.rows)
    assert all(row.note for row in conversion.rows if row.kind != "taken")
    assert set(conversion.values) <= set(load_key_table())
    text = recipe_text(conversion, "theirs.yaml", "recipe.yaml")
    assert yaml.safe_load(text) == parse_scalar(text) == conversion.values
    assert conversion_text(conversion)


@pytest.mark.parametrize("name", TOOLS)
def test_the_smallest_configuration_makes_a_recipe_of_known_keys(name):
    conversion = convert(Config(DATA[name], FILE), TOOLS[name])
    checked = check_keys(conversion.values, load_key_table(), lambda key: key)
    assert checked["model_name_or_path"] == "org/model"
    assert conversion.values["eval_share"] == 0  # all four hold nothing out by themselves
    assert conversion.values["method"] == ("full" if name in ("axolotl", "trl") else "lora")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(blacklist_categories=("Cs", "Cc"), blacklist_characters="\u0085\u2028\u2029\ufeff")),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc_", min_size=1), inner, max_size=3),
        max_leaves=6,
    )
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_a_value_is_read_back_by_yaml_1_1_and_1_2_alike(value):
    text = f"key: {yaml_value(value)}"
    assert yaml.safe_load(text) == {"key": value}
    assert parse_scalar(text) == {"key": value}
