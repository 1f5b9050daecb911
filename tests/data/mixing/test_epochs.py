"""What a Trainer makes of mixed data: another order every epoch, and the same rows on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from datasets import Dataset
from mixed_stream_rows import EPOCH_ROWS, first_ids, mixture
from mixed_stream_trainer import train
from two_ranks import run_two_ranks

from hf_recipes.data.mixing.mix import mix_datasets

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "data" / "mixed_stream_trainer.py"


def epochs_of_the_stream():
    stream = mixture()
    epochs = [first_ids(stream)]
    stream.set_epoch(1)
    return [*epochs, first_ids(stream)]


def test_d7_a_trainer_reads_a_stream_in_another_order_every_epoch(tmp_path):
    first, second = epochs_of_the_stream()
    assert len(first) == len(second) == EPOCH_ROWS
    assert train(mixture(), str(tmp_path), batch=4, max_steps=2 * EPOCH_ROWS // 4) == first + second


def test_d7_a_trainer_reshuffles_a_mixed_dataset_every_epoch(tmp_path):
    parts = [Dataset.from_dict({"input_ids": [[n] for n in range(start, start + 60)]}) for start in (0, 100)]
    mixed = mix_datasets({"a": parts[0], "general": parts[1]}, general_share=0.25)
    seen = train(mixed, str(tmp_path), batch=4, num_train_epochs=2)
    assert seen[:80] != seen[80:]
    assert sorted(seen[:80]) == sorted(seen[80:]) == sorted(first_ids(mixed))


@pytest.mark.slow
@pytest.mark.trials
def test_two_ranks_train_on_the_rows_of_one(tmp_path):
    ranks = run_two_ranks(SCRIPT, tmp_path)
    # Step by step, both ranks' two rows are the next four of the stream.
    together = [
        row for step in range(0, len(ranks[0]), 2) for row in (*ranks[0][step : step + 2], *ranks[1][step : step + 2])
    ]
    assert together == [row for epoch in epochs_of_the_stream() for row in epoch]
