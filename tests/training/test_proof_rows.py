"""Samples for the proof come from a run's own data, split as it was; what is gone is told."""

from __future__ import annotations

import json

import pytest

from hf_recipes.core.run_directory import RunDirectory
from hf_recipes.data.prepare import prepare_data
from hf_recipes.training import proof_rows as module
from hf_recipes.training.proof_rows import proof_rows


@pytest.fixture
def run(tmp_path, tokenizer):
    """What a run of 60 rows leaves: run.json, data.json and a result with its tokenizer."""
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"Say {number}", "completion": f"It is {number}."} for number in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    directory = RunDirectory(tmp_path / "run")
    tokenizer.save_pretrained(directory.adapter)
    (directory.adapter / "adapter_config.json").write_text("{}")
    recipe = {"datasets": [{"path": str(file)}], "eval_share": 0.2, "max_length": 128, "seed": 1}
    data = prepare_data(recipe["datasets"], tokenizer, eval_share=0.2, max_length=128, seed=1)
    directory.write(directory.run_json, {"task": "causal_lm", "recipe": recipe})
    directory.write(directory.data_json, data.report)
    return directory, data, file


def test_half_of_the_samples_were_held_out(run):
    directory, data, _ = run
    found = proof_rows(directory, samples=6)
    assert (found.train, found.held_out, found.notices) == (3, 3, [])
    trained, held_out = ({tuple(row["input_ids"]) for row in side} for side in (data.train, data.eval))
    sides = [tuple(row) for row in found.rows]
    assert len(set(sides)) == 6
    assert set(sides[:3]) <= trained and set(sides[3:]) <= held_out
    assert found.prompts and all(any(row[: len(prompt)] == prompt for row in found.rows) for prompt in found.prompts)


def test_of_large_data_the_first_rows_are_taken(run, monkeypatch, tokenizer):
    directory, _, _ = run
    monkeypatch.setattr(module, "MAX_PREPARED_BYTES", 10)
    found = proof_rows(directory.path, samples=4)
    assert [tokenizer.decode(row).count("Say") for row in found.rows] == [1, 1, 1, 1]
    assert "Say 0" in tokenizer.decode(found.rows[0])
    assert (found.train, found.held_out) == (0, 0) and "large" in found.notices[0]


def test_data_that_is_gone_or_changed_is_told(run):
    directory, _, file = run
    file.write_text(file.read_text() + json.dumps({"prompt": "More", "completion": "Yes."}) + "\n")
    assert "has changed since" in proof_rows(directory).notices[0]
    file.unlink()
    found = proof_rows(directory)
    assert found.rows == [] and "cannot be read again" in found.notices[0]


def test_a_classifier_has_fixed_prompts_only(run):
    directory, _, _ = run
    directory.write(directory.run_json, {**directory.read(directory.run_json), "task": "sequence_classification"})
    found = proof_rows(directory)
    assert found.rows == [] and "fixed prompts only" in found.notices[0]
