from __future__ import annotations

import json

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import load_recipe, recipe_of_keys
from hf_recipes.training.plan_data import data_facts, supervised_share


@pytest.fixture
def recipe(tiny_model_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_RECIPES_CACHE", str(tmp_path / "cache"))
    rows = [{"instruction": "Say " + "so " * n, "output": f"It is {n}."} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "my.yaml").write_text(
        f"model_name_or_path: {tiny_model_dir}\ndatasets: [rows.jsonl]\nmax_length: 256\n"
    )
    return lambda *keys: load_recipe("my.yaml", keys)


def test_facts_are_those_of_the_prepared_data(recipe):
    from hf_recipes.data.prepare import prepare_data
    from hf_recipes.data.settings import data_settings
    from hf_recipes.models.tokenizer import load_recipe_tokenizer

    facts = data_facts(recipe())
    values = recipe().values
    report = prepare_data(values["datasets"], load_recipe_tokenizer(values), **data_settings(values)).report
    assert (facts.rows, facts.longest) == (report["train"]["rows"], report["train"]["length"]["max"])
    assert facts.work.tokens == report["train"]["tokens"]
    assert facts.work.supervised == report["train"]["supervised_tokens"]
    assert facts.supervised_share == pytest.approx(supervised_share(report))
    assert facts.eval_work.tokens == report["eval"]["tokens"]
    assert 0 < facts.padding_share(4, 4, 0) < 1
    assert facts.padding_share(1, 1, 0) < facts.padding_share(4, 4, 0)  # alone they are padded to a multiple of 8


def test_packed_rows_are_full_ones(recipe):
    plain, packed = data_facts(recipe()), data_facts(recipe("--packing", "true"))
    assert packed.longest == 256
    assert packed.rows < plain.rows
    assert packed.work == plain.work  # samples see themselves alone
    assert packed.padding_share(2, 2, 0) == 0


def test_given_tokens_stand_for_data():
    facts = data_facts(recipe_of_keys(["--model_name_or_path", "x", "--max_length", "100"], "plan"), 1001)
    assert (facts.rows, facts.longest, facts.work.tokens) == (11, 100, 1001)


@pytest.mark.parametrize("keys", [(), ("--streaming", "true", "--max_steps", "3")])
def test_without_rows_there_are_none(keys, recipe):
    given = recipe(*keys) if keys else recipe_of_keys(["--model_name_or_path", "x"], "plan")
    assert data_facts(given).rows == 0


def test_data_on_the_hub_are_not_waited_for(tiny_model_dir):
    keys = ["--model_name_or_path", str(tiny_model_dir), "--datasets", "[{path: some/where}]"]
    facts = data_facts(recipe_of_keys(keys, "plan"))
    assert facts.rows == 0
    assert "some/where is not on this machine" in facts.source


def test_a_fault_of_the_data_is_no_fault_of_the_tokenizer(tiny_model_dir, tmp_path):
    """Whatever words its path or sentence holds."""
    rows = tmp_path / "GitHub" / "tokenizers.jsonl"
    rows.parent.mkdir()
    rows.write_text('{"neither": 1}\n')
    keys = ["--model_name_or_path", str(tiny_model_dir), "--datasets", f"[{{path: {rows}}}]"]
    with pytest.raises(UserError, match="has no format known here"):
        data_facts(recipe_of_keys(keys, "plan"))


def test_wrong_data_are_told(recipe, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"neither": 1}\n')
    with pytest.raises(UserError, match="neither"):
        data_facts(recipe())
