"""Room for the next checkpoint, and a clean place for it."""

from __future__ import annotations

import pytest
from checkpoint_helpers import lora_config, make_trainer, tiny_llama
from peft import get_peft_model

from hf_recipes.checkpoints import disk_space
from hf_recipes.checkpoints.choose import last_good_checkpoint
from hf_recipes.checkpoints.disk_space import estimate_checkpoint_bytes, free_bytes, why_not_enough
from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import read_manifest
from hf_recipes.core.events import read_events
from hf_recipes.core.free_space import directory_bytes


def alarms(output):
    return [event["message"] for event in read_events(output) if event["kind"] == "alarm"]


@pytest.fixture
def disk(monkeypatch):
    """A disk with as much room as the test says."""
    room = {"free": 10**12}
    monkeypatch.setattr(disk_space, "free_bytes", lambda directory: room["free"])
    return room


@pytest.mark.parametrize("lora", [None, lora_config()], ids=["full", "lora"])
def test_the_estimate_for_the_first_is_near_what_is_written(lora, tmp_path):
    trainer = make_trainer(tmp_path, [], lora=lora, max_steps=1, model=tiny_llama(hidden_size=256, vocab_size=4096))
    trainer.train()
    estimate = estimate_checkpoint_bytes(trainer.model, trainer.optimizer, save_only_model=False)
    weights, optimizer = (
        sum(path.stat().st_size for path in tmp_path.glob(f"checkpoint-1/{name}"))
        for name in ("*model.safetensors", "optimizer.pt")
    )
    assert 0.6 < estimate / (weights + optimizer) <= 1
    only = estimate_checkpoint_bytes(trainer.model, trainer.optimizer, save_only_model=True)
    assert 0.6 < only / weights <= 1


def test_where_the_optimizers_state_is_hidden_twelve_bytes_a_trained_value_are_assumed():
    model = get_peft_model(tiny_llama(), lora_config())
    trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert estimate_checkpoint_bytes(model, object(), save_only_model=False) == trained * (4 + 12)


def test_without_room_the_first_save_is_passed_over_and_the_run_goes_on(disk, tmp_path):
    disk["free"] = 1000
    trainer = make_trainer(tmp_path, [CheckpointKeeper()], max_steps=2)
    trainer.train()
    assert trainer.state.global_step == 2
    assert list(tmp_path.glob("checkpoint-*")) == []
    first, _ = alarms(tmp_path)
    assert first.startswith(f"Step 1: not saved, '{tmp_path}' has 1,000 bytes free, and a checkpoint needs ")
    assert "there is no checkpoint yet. What to do: free space there" in first


def test_without_room_for_another_it_says_so_at_once_passes_over_and_saves_again_when_there_is(disk, tmp_path):
    class Fill(CheckpointKeeper):
        """The keeper, on a disk that has room again from step 3 on."""

        def on_step_end(self, args, state, control, **kwargs):
            disk["free"] = 10**12 if state.global_step in (1, 3) else 1000
            super().on_step_end(args, state, control, **kwargs)
            disk["free"] = 1000

    make_trainer(tmp_path, [Fill()], max_steps=3).train()
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-1", "checkpoint-3"]
    first, second, third = alarms(tmp_path)
    assert first.startswith("After checkpoint-1 there is no room for another one: ")
    assert second.startswith("Step 2: not saved")
    assert "the last checkpoint stays checkpoint-1" in second
    assert third.startswith("After checkpoint-3")
    assert last_good_checkpoint(tmp_path).path.name == "checkpoint-3"


def test_a_file_system_that_does_not_tell_is_no_reason_to_stop(tmp_path):
    assert free_bytes(tmp_path / "not there") is None
    assert why_not_enough(tmp_path / "not there", 10**18) is None
    assert "bytes free, and a checkpoint needs" in why_not_enough(tmp_path, 10**18)
    assert why_not_enough(tmp_path, 10**18, reusable_bytes=2 * 10**18) is None


def test_c1_what_an_earlier_attempt_left_at_a_checkpoints_place_is_gone_before_it_is_written(full_run, tmp_path):
    stale = full_run / "checkpoint-2"
    (stale / "rng_state_7.pth").write_bytes(b"of a rank that is gone")
    (stale / "model-00002-of-00002.safetensors").write_bytes(b"of another sharding")
    (stale / "global_step2").mkdir()
    (stale / "global_step2" / "mp_rank_00_model_states.pt").write_bytes(b"of another strategy")
    keeper = CheckpointKeeper()
    trainer = make_trainer(full_run, [keeper])
    trainer.train(resume_from_checkpoint=str(full_run / "checkpoint-1"))
    assert keeper.failed is None
    fresh = {path.name for path in (full_run / "checkpoint-1").iterdir()}
    assert {path.name for path in stale.iterdir()} == fresh
    assert set(read_manifest(stale).files) == fresh - {"manifest.json", "verified.json"}
    (note,) = [event for event in read_events(full_run) if event["kind"] == "note"]
    assert note["message"].startswith("checkpoint-2 of an earlier attempt (")


def test_a_place_taken_by_an_earlier_attempt_counts_as_room(disk, full_run):
    size = directory_bytes(full_run / "checkpoint-2")
    disk["free"] = size // 2
    make_trainer(full_run, [CheckpointKeeper()]).train(resume_from_checkpoint=str(full_run / "checkpoint-1"))
    assert read_manifest(full_run / "checkpoint-2")


def test_the_strategy_best_saves_into_a_clean_place_too(tmp_path):
    keeper = CheckpointKeeper(trial_save=False)
    trainer = make_trainer(
        tmp_path,
        [keeper],
        save_strategy="best",
        eval_strategy="steps",
        eval_steps=2,
        metric_for_best_model="loss",
        greater_is_better=False,
        eval_rows=8,
    )
    (tmp_path / "checkpoint-2").mkdir(parents=True)
    (tmp_path / "checkpoint-2" / "model-00002-of-00002.safetensors").write_bytes(b"old")
    trainer.train()
    assert keeper.failed is None
    assert not (tmp_path / "checkpoint-2" / "model-00002-of-00002.safetensors").exists()
    assert read_manifest(tmp_path / "checkpoint-2")
