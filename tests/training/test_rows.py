"""`packing`, `streaming` and length groups as a recipe's run uses them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from datasets import Dataset
from tiny_runs import tiny_arguments

from hf_recipes.core.errors import UserError
from hf_recipes.recipe.resolve import Recipe, load_recipe
from hf_recipes.training.rows import TrainingRows, check_rows, tell_padding
from hf_recipes.training.run import train

RECIPE = """
model_name_or_path: {model}
overfit_check: off
datasets:
  - path: {directory}/domain.jsonl
  - {{path: {directory}/general.jsonl, role: general}}
method: full
max_length: 128
per_device_train_batch_size: 4
learning_rate: 1.0e-3
general_share: 0.2
report_to: none
disable_tqdm: true
output_dir: {directory}/run
"""


@pytest.fixture
def recipe_file(tmp_path, tiny_model_dir):
    for name in ("domain", "general"):
        rows = [
            {"prompt": f"{name} {number}", "completion": "yes " * (1 + number % 9) + f"{name} {number}"}
            for number in range(60)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "recipe.yaml"
    file.write_text(RECIPE.format(model=tiny_model_dir, directory=tmp_path))
    return file


def events(run, kind):
    return [event for line in open(run.path / "events.jsonl") if (event := json.loads(line))["kind"] == kind]


def test_packed_rows_are_trained_on_and_counted(recipe_file, caplog):
    with caplog.at_level("INFO", logger="hf_recipes"):
        run = train(load_recipe(str(recipe_file), ["--packing", "true"]))
    packed = next(record for record in caplog.records if record.message.startswith("Packed"))
    samples, rows = packed.args[0], packed.args[1]
    report = json.loads((run.path / "data.json").read_text())
    assert samples == report["train"]["rows"] > rows
    assert any("stay apart" in record.message for record in caplog.records)
    steps = -(-rows // 4) * 3  # three epochs, SFTConfig's default
    assert json.loads((run.path / "status.json").read_text())["last_step"] == steps


def test_a_stream_is_trained_on_and_its_account_written_at_the_end(recipe_file):
    run = train(load_recipe(str(recipe_file), ["--streaming", "true", "--max_steps", "6"]))
    report = json.loads((run.path / "data.json").read_text())
    assert report["streaming"] and report["train"]["rows"] >= 24
    assert report["general_share"]["reached"] == pytest.approx(0.2, abs=0.5 / 24)
    assert report["eval"]["rows"] > 0 and events(run, "eval")
    assert report["end_of_turn"]["text"]


def test_length_groups_give_every_sample_once_and_train(recipe_file):
    run = train(load_recipe(str(recipe_file), ["--train_sampling_strategy", "group_by_length", "--max_steps", "3"]))
    assert json.loads((run.path / "status.json").read_text())["code"] == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"packing": True, "max_length": None}, "give max_length a number"),
        ({"streaming": True}, "give max_steps"),
        ({"streaming": True, "max_steps": 5, "packing": True}, "exclude each other"),
        ({"streaming": True, "max_steps": 5, "train_sampling_strategy": "group_by_length"}, "exclude each other"),
        ({"streaming": True, "max_steps": 5, "dataloader_num_workers": 2}, "remove dataloader_num_workers"),
    ],
)
def test_keys_that_contradict_each_other_are_told(values, message):
    with pytest.raises(UserError, match=message):
        check_rows(Recipe("r", values, frozenset(values)))


def told_padding(recipe_file, lengths, caplog, **settings):
    rows = TrainingRows(Dataset.from_dict({"input_ids": [[1] * n for n in lengths], "length": lengths}), max(lengths))
    with caplog.at_level("INFO", logger="hf_recipes"):
        tell_padding(rows, tiny_arguments(recipe_file.parent, **{"train_sampling_strategy": "random", **settings}))
    return caplog.text


def test_padding_that_grouping_would_save_is_told_not_taken_away(recipe_file, caplog):
    lengths = np.random.default_rng(0).integers(10, 400, 300).tolist()
    told = told_padding(recipe_file, lengths, caplog, per_device_train_batch_size=8)
    assert "of the tokens computed are padding; train_sampling_strategy: group_by_length makes it" in told


@pytest.mark.parametrize(
    "settings",
    [
        {"per_device_train_batch_size": 8, "train_sampling_strategy": "group_by_length"},
        {"per_device_train_batch_size": 1},
        # Within a global batch of many micro-batches like lengths meet already.
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 32},
    ],
)
def test_where_little_is_to_be_saved_nothing_is_told(settings, recipe_file, caplog):
    lengths = np.random.default_rng(0).integers(10, 400, 300).tolist()
    assert told_padding(recipe_file, lengths, caplog, **settings) == ""
