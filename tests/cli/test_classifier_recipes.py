"""A classifier's recipe given to a verb for language models: refused, not trained on its texts."""

from __future__ import annotations

import pytest

from hf_recipes.cli.main import main
from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import load_recipe
from hf_recipes.training.run import train


@pytest.mark.parametrize("verb", ["sft", "inspect", "overfit", "prepare", "profile"])
def test_a_verb_for_language_models_does_not_take_it(verb, tiny_model_dir, tmp_path, capsys):
    output = tmp_path / "run"
    keys = ["--model_name_or_path", str(tiny_model_dir), "--output_dir", str(output)]
    assert main([verb, "--config", "smollm2/classify", *keys]) == 2
    told = capsys.readouterr().err
    assert f"trains a classifier, and {verb} is for language models: take `hf-recipes classify`" in told
    assert not output.exists()


def test_neither_does_a_rank_that_is_started_without_the_verb(tiny_model_dir, tmp_path):
    keys = ["--model_name_or_path", str(tiny_model_dir), "--output_dir", str(tmp_path / "run")]
    with pytest.raises(UserError, match="sft is for language models"):
        train(load_recipe("smollm2/classify", keys))
