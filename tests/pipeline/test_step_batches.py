from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.pipeline.batches import make_batch, step_rows_of

collate = SupervisedCollator(pad_token_id=7)


def row(length, number):
    return {"input_ids": [number] * length, "labels": [IGNORED_LABEL] + [number] * (length - 1)}


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 3))
def test_the_pipelines_see_each_row_once_in_one_shape(lengths, replicas):
    rows = [row(length, 100 + number) for number, length in enumerate(lengths)]
    step_rows = -(-len(rows) // replicas)
    batches = [make_batch(rows, replica, replicas, step_rows, collate) for replica in range(replicas)]
    assert all(len(batch.tensors["input_ids"]) == step_rows for batch in batches)
    seen = torch.cat([batch.tensors["labels"][batch.tensors["labels"] != IGNORED_LABEL] for batch in batches])
    expected = [100 + number for number, length in enumerate(lengths) for _ in range(length - 1)]
    assert sorted(seen.tolist()) == expected
    assert {batch.tokens for batch in batches} == {max(1, len(expected))}


def test_rows_that_are_missing_have_no_labels():
    batch = make_batch([row(5, 100)], 0, 1, 3, collate).tensors
    assert batch["input_ids"].shape == (3, 8)
    assert (batch["labels"][1:] == IGNORED_LABEL).all()


def test_steps_go_through_the_epochs_and_the_last_of_one_is_short():
    def order(epoch):
        return np.arange(5) + 10 * epoch

    steps = [step_rows_of(order, 5, 2, step).tolist() for step in range(4)]
    assert steps == [[0, 1], [2, 3], [4], [10, 11]]
