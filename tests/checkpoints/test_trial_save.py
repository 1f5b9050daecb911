"""The save after the first step of a fresh run, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_helpers import lora_config, make_trainer
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback

from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import read_manifest, read_verified
from hf_recipes.core.events import read_events


def names(output):
    return sorted(path.name for path in output.glob("checkpoint-*"))


class Seen(TrainerCallback):
    """What lies on the disk when each step begins."""

    def __init__(self):
        self.names = {}

    def on_step_begin(self, args, state, control, **kwargs):
        self.names[state.global_step + 1] = names(Path(args.output_dir))


def test_it_is_saved_verified_and_removed_by_the_next_one_that_verifies(tmp_path):
    seen = Seen()
    make_trainer(tmp_path, [seen, CheckpointKeeper()], save_steps=3, max_steps=4).train()
    assert seen.names[2] == ["checkpoint-1"]
    assert names(tmp_path) == ["checkpoint-3", "checkpoint-4"]
    first, second, _ = [event for event in read_events(tmp_path) if event["kind"] == "verify"]
    assert (first["checkpoint"], first["ok"], first["level"]) == ("checkpoint-1", True, "reload")
    assert second["removed"] == ["checkpoint-1"]
    (note,) = [event for event in read_events(tmp_path) if event["kind"] == "note"]
    assert "Saving once after the first step" in note["message"]


def test_one_that_was_to_be_saved_anyway_stays(tmp_path):
    make_trainer(tmp_path, [CheckpointKeeper()], save_steps=1, max_steps=2).train()
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    assert "trial" not in read_manifest(tmp_path / "checkpoint-1").extra


def test_the_best_one_stays(tmp_path):
    class BestIsFirst(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            state.best_model_checkpoint = f"{args.output_dir}/checkpoint-1"

    make_trainer(tmp_path, [BestIsFirst(), CheckpointKeeper()], save_steps=3, max_steps=3).train()
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-3"]


@pytest.mark.parametrize("off", [{"keeper": CheckpointKeeper(trial_save=False)}, {"save_strategy": "no"}])
def test_there_is_none_where_none_is_wanted(off, tmp_path):
    seen = Seen()
    keeper = off.pop("keeper", None) or CheckpointKeeper()
    make_trainer(tmp_path, [seen, keeper], **{"save_steps": 3, "max_steps": 3, **off}).train()
    assert seen.names[2] == []


def test_a_resumed_run_makes_none_and_removes_that_of_its_first_attempt(tmp_path):
    make_trainer(tmp_path, [StopAfter(1), CheckpointKeeper()], save_steps=3, max_steps=6).train()
    assert names(tmp_path) == ["checkpoint-1"]
    assert read_manifest(tmp_path / "checkpoint-1").extra["trial"] is True
    again = make_trainer(tmp_path, [CheckpointKeeper()], save_steps=3, max_steps=6)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-1"))
    assert names(tmp_path) == ["checkpoint-3", "checkpoint-6"]


class StopAfter(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_save(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_training_stop = True


def test_a_trial_of_an_epoch_of_one_step_is_the_save_of_that_epoch(tmp_path):
    keeper = CheckpointKeeper()
    trainer = make_trainer(tmp_path, [keeper], rows=4, save_strategy="epoch", max_steps=-1, num_train_epochs=2)
    trainer.train()
    assert keeper.failed is None
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-2"]
    assert all(read_verified(tmp_path / name)["ok"] for name in names(tmp_path))


def test_t8_an_adapter_saved_with_no_values_is_seen_long_before_the_first_regular_save(tmp_path):
    class Empty(TrainerCallback):
        """What ZeRO-3 leaves of an adapter: names without values."""

        def on_save(self, args, state, control, **kwargs):
            file = f"{args.output_dir}/checkpoint-{state.global_step}/adapter_model.safetensors"
            save_file({name: torch.empty(0) for name in load_file(file)}, file)

    keeper = CheckpointKeeper()
    trainer = make_trainer(
        tmp_path, [Empty(), keeper], lora=lora_config(), save_steps=500, max_steps=500, dataloader_num_workers=0
    )
    trainer.train()
    assert "shape [0]" in keeper.failed
    assert trainer.state.global_step < 500
    assert names(tmp_path) == ["checkpoint-1"]


def test_t9_an_optimizer_that_cannot_be_saved_is_seen_at_step_1(tmp_path):
    class Unsavable(torch.optim.AdamW):
        def state_dict(self):
            if self.state:
                raise RuntimeError("this state cannot be gathered")
            return super().state_dict()

    trainer = make_trainer(tmp_path, [CheckpointKeeper()], save_steps=500, max_steps=500)
    trainer.optimizer = Unsavable(trainer.model.parameters(), lr=0.01)
    with pytest.raises(RuntimeError, match="cannot be gathered"):
        trainer.train()
    assert trainer.state.global_step == 1
