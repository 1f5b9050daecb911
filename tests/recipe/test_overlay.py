from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.overlay import apply_overrides, parse_overrides


def test_values_flags_lists_and_equal_signs():
    assert parse_overrides(
        [
            *("--learning_rate", "1e-3", "--bf16", "--lora_target_modules", "q_proj", "v_proj"),
            *("--run_name=a=b", "--x", "-1"),
        ]
    ) == {
        "learning_rate": 1e-3,
        "bf16": True,
        "lora_target_modules": ["q_proj", "v_proj"],
        "run_name": "a=b",
        "x": -1,
    }


@pytest.mark.parametrize("arguments", [["value"], ["--a", "1", "--a", "2"], ["-x", "1"]])
def test_wrong_command_lines_are_refused(arguments):
    with pytest.raises(UserError):
        parse_overrides(arguments)


def test_dotted_keys_reach_into_mappings_and_lists_without_touching_the_recipe():
    recipe = {"watch": {"window": 3}, "datasets": [{"path": "a"}, {"path": "b"}]}
    result = apply_overrides(recipe, {"watch.spike_sigma": 8, "datasets.1.path": "c", "evaluation.samples": 2})
    assert result == {
        "watch": {"window": 3, "spike_sigma": 8},
        "datasets": [{"path": "a"}, {"path": "c"}],
        "evaluation": {"samples": 2},
    }
    assert recipe == {"watch": {"window": 3}, "datasets": [{"path": "a"}, {"path": "b"}]}


@pytest.mark.parametrize(
    ("dotted", "sentence"),
    [("datasets.5.path", "no item '5' in a list of 1"), ("method.name", "holds the plain value 'lora'")],
)
def test_a_dotted_key_that_leads_nowhere_is_named(dotted, sentence):
    with pytest.raises(UserError) as error:
        apply_overrides({"method": "lora", "datasets": [{}]}, {dotted: 1})
    assert sentence in str(error.value)


@given(st.dictionaries(st.text("abc_", min_size=1, max_size=5), st.integers(), max_size=5))
def test_flat_overrides_win_over_the_recipe(overrides):
    assert apply_overrides({"a": None, "b": 1}, overrides) == {"a": None, "b": 1, **overrides}
