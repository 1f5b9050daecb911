from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import Recipe
from hf_recipes.training.method_limits import check_method


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"method": "prefix", "activation_checkpointing": True}, "leave it out with method: prefix"),
        ({"method": "prefix", "prefix_projection": True, "resume_from_checkpoint": "last"}, "start anew"),
        ({"method": "prefix", "prefix_projection": True, "load_best_model_at_end": True}, "prefix_projection: false"),
        ({"method": "ia3", "weight_decay": 0.01}, "set it to 0"),
        ({"method": "partial"}, "nothing to train"),
    ],
)
def test_what_a_method_cannot_live_with_is_one_sentence(values, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        check_method(Recipe("test", values, frozenset(values)))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "values",
    [
        {"method": "prefix", "resume_from_checkpoint": "last", "activation_checkpointing": False},
        {"method": "ia3", "weight_decay": 0.0},
        {"method": "partial", "trainable_layers": -1},
        {"method": "partial", "trainable_modules": ["norm"]},
        {"method": "lora", "activation_checkpointing": True, "weight_decay": 0.1},
        {},
    ],
)
def test_what_it_can_is_let_through(values):
    check_method(Recipe("test", values, frozenset(values)))
