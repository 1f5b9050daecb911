"""What a manifest says of the run that wrote it."""

from __future__ import annotations

import importlib.metadata

import pytest
from checkpoint_helpers import make_trainer
from torch.utils.data import IterableDataset

from hf_recipes.checkpoints.keeper import CheckpointKeeper
from hf_recipes.checkpoints.manifest import read_manifest


@pytest.mark.parametrize(
    ("steps", "position", "samples"),
    [
        (1, {"epoch": 0, "batches": 2}, 4),
        (3, {"epoch": 1, "batches": 0}, 10),  # the third step of the first epoch had two rows
        (5, {"epoch": 1, "batches": 4}, 18),
    ],
)
def test_step_place_in_the_data_batch_and_seeds_are_kept(steps, position, samples, tmp_path):
    trainer = make_trainer(
        tmp_path,
        [CheckpointKeeper(extra={"recipe": "abc"})],
        rows=10,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=steps,
        save_steps=steps,
        seed=7,
        data_seed=8,
        include_num_input_tokens_seen="all",
    )
    trainer.train()
    manifest = read_manifest(tmp_path / f"checkpoint-{steps}")
    extra = manifest.extra
    assert manifest.step == steps
    assert extra["batch"] == {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "world_size": 1,
        "global_batch_size": 4,
    }
    assert (extra["seed"], extra["data_seed"], extra["recipe"]) == (7, 8, "abc")
    assert (extra["data_position"], extra["samples"]) == (position, samples)
    assert extra["tokens"] == samples * 8
    assert extra["epoch"] == pytest.approx(trainer.state.epoch)
    assert extra["versions"]["torch"] == importlib.metadata.version("torch")


def test_a_stream_without_length_is_one_long_epoch_and_tokens_are_absent_where_nobody_counts(tmp_path):
    class Stream(IterableDataset):
        def __iter__(self):
            for place in range(64):
                row = [3 + (place + offset) % 60 for offset in range(8)]
                yield {"input_ids": row, "labels": row}

    trainer = make_trainer(tmp_path, [CheckpointKeeper()], max_steps=3, save_steps=3)
    trainer.train_dataset = Stream()
    trainer.train()
    extra = read_manifest(tmp_path / "checkpoint-3").extra
    assert (extra["data_position"], extra["samples"]) == ({"epoch": 0, "batches": 3}, 12)
    assert "tokens" not in extra
