"""Rows that do not divide by the ranks, and a last batch that is not full: which rows count, and how often."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from launched_ranks import LaunchedRanks
from sameness import Cell, Workplace, apart, curves
from torch.utils.data import BatchSampler

from hf_recipes.training.uneven_rows import repeated_rows

ROWS = 67  # 59 to train: seven steps of 8 and one of 3; 8 to evaluate


@given(rows=st.integers(1, 60), micro=st.integers(1, 5), ranks=st.integers(2, 5))
def test_repeated_rows_are_those_that_accelerate_adds(rows, micro, ranks):
    batches = BatchSampler(range(rows), micro, drop_last=False)
    shards = [BatchSamplerShard(batches, ranks, rank) for rank in range(ranks)]
    met = sum(len(batch) for shard in shards for batch in shard)
    assert met == rows + repeated_rows(rows, micro, ranks)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uneven")
    ranks = LaunchedRanks(folder)
    yield Workplace(folder, ranks, steps=8, saved_every=8, row_count=ROWS)
    ranks.close()


def met(place, cell, name):
    """How often each row was trained on in the epoch, and the run."""
    file = place.folder / f"{name}.rows"
    run = place.finished(cell, name, hooks=[["run_hooks:counted_rows", str(file)]])
    lines = [
        line for rank in range(cell.ranks) for line in file.with_name(f"{file.name}.{rank}").read_text().split("\n")
    ]
    return Counter(str(row) for line in lines if line for row in json.loads(line)[1]), run


@pytest.mark.slow
@pytest.mark.trials
@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero2", "zero3"])
def test_each_row_counts_and_the_last_step_is_filled_up(strategy, uneven):
    if strategy.startswith("zero"):
        pytest.importorskip("deepspeed")
    once, one = met(uneven, Cell("alone", "lora", ranks=1), f"alone-{strategy}")
    often, run = met(uneven, Cell(strategy, "lora"), strategy)
    assert set(often) == set(once)
    assert sum(often.values()) == sum(once.values()) + 1  # ranks run out together: a row of the start once more
    found, expected = curves(run), curves(one)
    last = max(expected["loss"])
    for values in (found["loss"], expected["loss"]):
        values.pop(last)
    assert apart(found["loss"], expected["loss"])["max"] < 1e-3
    assert "of the start" in uneven.log(strategy).read_text()
