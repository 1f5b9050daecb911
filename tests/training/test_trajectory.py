"""A run that is broken off and resumed ends to the bit where the unbroken one ends: weights, optimizer, schedule,
random state, place in the data, and what the callbacks have seen."""

from __future__ import annotations

import json

import pytest
from resumed_runs import cut_off, recorded_batches, resume, train, write_recipe

from hf_recipes.checkpoints.manifest import read_manifest
from hf_recipes.core.errors import UserError

EXACT = ("adapter_model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth")
# name → (the step it is taken up at, keys). Eight rows a step make 6 steps an epoch, packed ones 3.
SETTINGS = {
    "random order, second epoch": (8, ["--gradient_accumulation_steps", "2"]),
    "group_by_length, at the end of an epoch": (
        6,
        ["--gradient_accumulation_steps", "2", "--train_sampling_strategy", "group_by_length"],
    ),
    "packing, second epoch": (4, ["--packing", "true", "--max_length", "128"]),
    "streaming, first pass": (4, ["--streaming", "true"]),
}


@pytest.fixture
def recipe(tiny_model_dir, tmp_path):
    return write_recipe(tmp_path, tiny_model_dir)


def last_checkpoint(run):
    return run / "checkpoint-10"


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_c4_a_resumed_run_ends_to_the_bit_where_the_unbroken_one_ends(name, recipe, tmp_path):
    step, keys = SETTINGS[name]
    keys = [*keys, "--save_steps", str(step)]
    with recorded_batches() as batches:
        whole = train(recipe, tmp_path / "whole", *keys)
    with recorded_batches() as again:
        resumed = resume(recipe, tmp_path / "whole", step, *keys)
    assert resumed == {number: pair for number, pair in whole.items() if number > step}
    assert again == batches[step * len(batches) // 10 :]
    before, after = (
        read_manifest(last_checkpoint(run)).files for run in (tmp_path / "whole", tmp_path / f"whole-from-{step}")
    )
    assert {name: after[name].sha256 for name in EXACT} == {name: before[name].sha256 for name in EXACT}
    states = [
        json.loads((last_checkpoint(run) / "trainer_state.json").read_text())
        for run in (tmp_path / "whole", tmp_path / f"whole-from-{step}")
    ]
    assert states[0]["stateful_callbacks"] == states[1]["stateful_callbacks"]
    assert states[0]["epoch"] == states[1]["epoch"]


@pytest.mark.slow
def test_a_run_killed_while_it_saved_its_result_saves_it_when_resumed(recipe, tmp_path, caplog):
    """All steps are trained, the result is not there: a step more would be one too many, and refusing would lose it."""
    keys = ["--save_steps", "5"]
    train(recipe, tmp_path / "whole", *keys)
    with recorded_batches() as batches, caplog.at_level("INFO", "hf_recipes"):
        resume(recipe, tmp_path / "whole", 10, *keys)
    assert batches == []
    assert "All 10 steps were trained already: the result is saved from" in caplog.text
    weights = [tmp_path / run / "adapter" / "adapter_model.safetensors" for run in ("whole", "whole-from-10")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    status = json.loads((tmp_path / "whole-from-10" / "status.json").read_text())
    assert (status["code"], status["last_step"]) == (0, 10)


@pytest.mark.slow
def test_auto_starts_goes_on_and_ends(recipe, tmp_path, caplog):
    keys = ["--save_steps", "4", "--resume_from_checkpoint", "auto"]
    with caplog.at_level("INFO", "hf_recipes"):
        whole = train(recipe, tmp_path / "run", *keys)
    assert "holds no checkpoint, so the run starts" in caplog.text
    cut_off(tmp_path / "run", tmp_path / "killed", 4)
    assert train(recipe, tmp_path / "killed", *keys) == {step: pair for step, pair in whole.items() if step > 4}
    with recorded_batches() as batches, pytest.raises(UserError, match=r"'.*killed' is finished") as ended:
        train(recipe, tmp_path / "killed", *keys)
    assert (ended.value.exit_code, batches) == (0, [])
    longer = train(recipe, tmp_path / "killed", *keys, "--max_steps", "11")
    assert 11 in longer
