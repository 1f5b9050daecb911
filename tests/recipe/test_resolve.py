from __future__ import annotations

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import load_recipe

RECIPE = """# a test recipe
model_name_or_path: some/model
method: lora
datasets:
  - path: data.jsonl
"""


@pytest.fixture
def recipe_file(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(RECIPE)
    return path


@pytest.mark.parametrize(("method", "learning_rate"), [("full", 2e-5), ("lora", 2e-4), ("dora", 2e-4), ("qlora", 2e-4)])
def test_the_defaults_of_the_guide(recipe_file, method, learning_rate):
    recipe = load_recipe(str(recipe_file), ["--method", method])
    expected = {
        "learning_rate": learning_rate,
        "warmup_steps": 0.03,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
        "max_grad_norm": 1.0,
        "eval_steps": 0.1,
        "save_steps": 0.1,
        "assistant_only_loss": True,
    }
    if method != "full":
        expected |= {
            "lora_r": 16,
            "lora_alpha": 32,
            "lora_dropout": 0.05,
            "lora_target_modules": ["q_proj", "v_proj"],
        }
    assert {key: recipe.values[key] for key in expected} == expected
    assert ("lora_r" in recipe.values) == (method != "full")


def test_command_line_wins_over_file_over_defaults(recipe_file):
    recipe_file.write_text(RECIPE + "learning_rate: 1e-3\nlora_r: 8\n")
    recipe = load_recipe(str(recipe_file), ["--lora_r", "4"])
    assert (recipe.values["learning_rate"], recipe.values["lora_r"], recipe.values["lora_alpha"]) == (1e-3, 4, 32)
    assert recipe.given == {"model_name_or_path", "method", "datasets", "learning_rate", "lora_r"}


def test_both_spellings_of_checkpointing_reach_the_trainer(recipe_file):
    for key in ("gradient_checkpointing", "activation_checkpointing"):
        values = load_recipe(str(recipe_file), [f"--{key}", "on"]).values
        assert values["activation_checkpointing"] is True
        assert "gradient_checkpointing" not in values


def test_our_schedule_arguments_leave_with_our_schedule(recipe_file):
    assert "lr_scheduler_kwargs" not in load_recipe(str(recipe_file), ["--lr_scheduler_type", "linear"]).values


def test_data_is_found_beside_the_recipe(recipe_file, tmp_path, monkeypatch):
    (tmp_path / "data.jsonl").write_text("{}\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_recipe(str(recipe_file)).values["datasets"] == [{"path": str(tmp_path / "data.jsonl")}]


def test_a_tilde_in_a_recipe_is_the_home_directory(recipe_file, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    recipe_file.write_text(RECIPE.replace("data.jsonl", "~/data.jsonl") + "output_dir: ~/runs/a\n")
    values = load_recipe(str(recipe_file), ["--evaluation.domain", "~/held_out.jsonl"]).values
    assert values["output_dir"] == str(tmp_path / "home" / "runs" / "a")
    assert values["datasets"][0]["path"] == str(tmp_path / "home" / "data.jsonl")
    assert values["evaluation"]["domain"] == str(tmp_path / "home" / "held_out.jsonl")


def test_every_file_of_an_evaluation_is_found_beside_the_recipe(recipe_file):
    for name in ("choices.jsonl", "score.py", "schema.json", "task.yaml", "rows.csv"):
        (recipe_file.parent / name).touch()
    recipe_file.write_text(
        RECIPE + "evaluation: {choices: choices.jsonl, function: score.py:own, format: {schema: schema.json}, "
        "tasks: [task.yaml, arc_easy], domain: {path: rows.csv, columns: {prompt: q, completion: a}}}\n"
    )
    found = load_recipe(str(recipe_file)).values["evaluation"]
    beside = recipe_file.parent.resolve()
    assert found["choices"] == str(beside / "choices.jsonl")
    assert found["function"] == f"{beside / 'score.py'}:own"
    assert found["format"] == {"schema": str(beside / "schema.json")}
    assert found["domain"]["path"] == str(beside / "rows.csv")
    assert found["tasks"] == [str(beside / "task.yaml"), "arc_easy"]


def test_a_bare_dataset_name_is_a_path(recipe_file):
    assert load_recipe(str(recipe_file), ["--datasets", "owner/name"]).values["datasets"] == [{"path": "owner/name"}]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("datasets: [a]\n", "'model_name_or_path' is missing"),
        ("model_name_or_path: m\n", "'datasets' is missing"),
        ("model_name_or_path: m\ndatasets: []\n", "'datasets' is missing"),
        (RECIPE + "adam_beta2: -1\n", "line 6: 'adam_beta2' is -1.0: give a value from 0 to 1"),
        (RECIPE + "max_grad_norm: .nan\n", "max_grad_norm"),
        (RECIPE + "deepspeed: nope.json\n", "line 6: deepspeed names 'nope.json', which does not exist"),
        (RECIPE + 'output_dir: "a\\nb"\n', "holds a line break or a null byte"),
        (RECIPE + "general_share: 1.5\n", "line 6: 'general_share' is 1.5: give a value from 0 to 0.9"),
        (RECIPE + "lora_r: 0\n", "line 6: 'lora_r' is 0"),
        (RECIPE + "leraning_rate: 1\n", "line 6: unknown key 'leraning_rate' (did you mean 'learning_rate'?)"),
    ],
)
def test_a_wrong_recipe_is_one_sentence(recipe_file, text, sentence):
    recipe_file.write_text(text)
    with pytest.raises(UserError) as error:
        load_recipe(str(recipe_file))
    assert sentence in str(error.value)


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(UserError, match="did you mean 'smollm2/sft_lora'"):
        load_recipe("smollm2/sft_lra")


def test_the_fingerprint_ignores_where_output_goes_and_nothing_else(recipe_file):
    base = load_recipe(str(recipe_file)).fingerprint()
    assert load_recipe(str(recipe_file), ["--output_dir", "x"]).fingerprint() == base
    assert load_recipe(str(recipe_file), ["--seed", "7"]).fingerprint() != base


@pytest.mark.parametrize("key", ["activation_checkpointing", "gradient_checkpointing"])
def test_auto_means_as_if_left_out(recipe_file, key):
    recipe = load_recipe(str(recipe_file), [f"--{key}", "auto"])
    assert key not in recipe.given and "activation_checkpointing" not in recipe.values


@pytest.mark.parametrize("method", ["full", "partial", "lora", "dora", "qlora", "adapter", "prefix", "ia3"])
def test_every_method_has_a_learning_rate_of_its_own(recipe_file, method):
    assert load_recipe(str(recipe_file), ["--method", method]).values["learning_rate"] > 0


def test_keys_of_another_method_have_no_effect(recipe_file):
    keys = ["--lora_r", "8", "--num_virtual_tokens", "3", "--load_in_8bit", "false"]
    assert load_recipe(str(recipe_file), ["--method", "full", *keys]).idle_keys() == ["lora_r", "num_virtual_tokens"]
    assert load_recipe(str(recipe_file), ["--method", "dora", "--lora_r", "8"]).idle_keys() == []


def test_two_spellings_of_a_key_with_two_values_are_refused(recipe_file):
    keys = ["--activation_checkpointing", "false", "--gradient_checkpointing"]
    with pytest.raises(UserError, match="the same key, with two values"):
        load_recipe(str(recipe_file), [*keys, "true"])
    assert load_recipe(str(recipe_file), [*keys, "false"]).values["activation_checkpointing"] is False


def test_lora_on_parameters_goes_without_dropout(recipe_file):
    keys = ["--lora_target_parameters", "all-experts"]
    assert load_recipe(str(recipe_file), keys).values["lora_dropout"] == 0
    assert load_recipe(str(recipe_file), [*keys, "--lora_dropout", "0.1"]).values["lora_dropout"] == 0.1
