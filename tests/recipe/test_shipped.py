"""Every shipped recipe loads, names data that is there or is the user's, and explains its knobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_recipes.data.check import check_sources
from hf_recipes.data.classification import check_classification_sources
from hf_recipes.quickstart.orders import write_orders
from hf_recipes.recipe.resolve import load_recipe, parse_recipe
from hf_recipes.recipe.shipped import recipes_root, shipped_recipes, summary

RECIPES = shipped_recipes()


def test_the_recipes_promised_are_there():
    assert {"smollm2/sft_full", "smollm2/sft_lora", "smollm2/sft_qlora", "smollm2/classify"} <= set(RECIPES)
    assert {"llama2/13b_qlora", "qwen2.5/7b_lora", "qwen2.5/7b_qlora", "llama3/8b_lora", "llama3/8b_qlora"} <= set(
        RECIPES
    )


@pytest.mark.parametrize("name", RECIPES)
def test_it_loads_and_parses_into_the_hf_dataclasses(name, tmp_path):
    recipe = load_recipe(name, ["--output_dir", str(tmp_path), "--use_cpu", "--bf16", "off"])
    arguments, model, ours = parse_recipe(recipe)
    assert arguments.learning_rate == recipe.values["learning_rate"]
    assert model.model_name_or_path == recipe.values["model_name_or_path"]
    assert ours.method == recipe.values["method"]


@pytest.mark.parametrize("name", RECIPES)
def test_every_knob_says_what_it_costs(name):
    lines = RECIPES[name].read_text(encoding="utf-8").splitlines()
    assert summary(RECIPES[name])
    knobs = [line for line in lines if line and not line.startswith(("#", " ")) and not line.startswith("seed")]
    plain = [line for line in knobs if "#" not in line]
    assert plain == [], f"no comment: {plain}"


@pytest.mark.parametrize("name", [name for name in RECIPES if name.startswith("smollm2/")])
def test_its_data_is_shipped_and_sound(name):
    recipe = load_recipe(name)
    check = check_classification_sources if name.endswith("classify") else check_sources
    check(recipe.values["datasets"])
    for key in ("domain", "schema", "general"):
        if recipe.get("evaluation"):
            assert Path(recipe.values["evaluation"][key]).is_file()


def test_the_shipped_orders_are_what_the_generator_makes(tmp_path):
    files = write_orders(tmp_path, train_rows=228, heldout_rows=64, seed=0)
    data = recipes_root() / "data"
    assert files.train.read_bytes() == (data / "orders.jsonl").read_bytes()
    assert files.heldout.read_bytes() == (data / "orders_heldout.jsonl").read_bytes()
    assert json.loads(files.schema.read_text()) == json.loads((data / "orders_schema.json").read_text())


def test_no_general_prompt_of_the_evaluation_is_trained_on():
    data = recipes_root() / "data"
    train, heldout = (
        {json.loads(line)["messages"][0]["content"] for line in (data / name).read_text().splitlines()}
        for name in ("general.jsonl", "general_heldout.jsonl")
    )
    assert train & heldout == set()
