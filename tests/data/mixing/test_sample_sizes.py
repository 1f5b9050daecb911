from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, Features, List, Value, concatenate_datasets
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.mixing import sample_sizes as module
from hf_recipes.data.mixing.sample_sizes import row_size, sample_sizes

LABELS = st.lists(st.one_of(st.none(), st.lists(st.sampled_from([-100, 0, 5]), max_size=6)), min_size=1, max_size=30)


@given(LABELS, st.integers(1, 7))
def test_sizes_are_those_of_the_rows(rows, rows_at_once):
    dataset = Dataset.from_dict(
        {"input_ids": rows, "labels": rows},
        features=Features({"input_ids": List(Value("int32")), "labels": List(Value("int32"))}),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ROWS_AT_ONCE", rows_at_once)
        assert sample_sizes(dataset, "rows").tolist() == [1] * len(rows)
        assert sample_sizes(dataset, "tokens").tolist() == [len(row or ()) for row in rows]
        learned = [sum(label != -100 for label in row or ()) for row in rows]
        assert sample_sizes(dataset, "supervised_tokens").tolist() == learned


@pytest.mark.parametrize("kind", [pa.large_list(pa.int64()), pa.list_(pa.int64(), 2), pa.list_(pa.int32())])
def test_all_kinds_of_lists_are_measured_also_in_slices_and_selections(kind):
    table = pa.table({"labels": pa.array([[1, 2], [-100, 3], [-100, -100]], kind)})
    dataset = Dataset(table)
    assert sample_sizes(dataset, "supervised_tokens").tolist() == [2, 1, 0]
    assert sample_sizes(dataset.select([2, 0, 0]), "supervised_tokens").tolist() == [0, 2, 2]
    assert sample_sizes(dataset.select(range(1, 3)), "supervised_tokens").tolist() == [1, 0]
    assert sample_sizes(concatenate_datasets([dataset, dataset]), "supervised_tokens").tolist() == [2, 1, 0] * 2


def test_row_sizes_of_streams_are_the_same():
    row = {"input_ids": [1, 2, 3], "labels": np.array([-100, 2, 0])}
    assert [row_size(unit)(row) for unit in ("rows", "tokens", "supervised_tokens")] == [1, 3, 2]


def test_an_empty_dataset_has_no_sizes():
    dataset = Dataset.from_dict({"input_ids": []}, features=Features({"input_ids": List(Value("int32"))}))
    assert sample_sizes(dataset, "tokens").tolist() == []


def test_columns_that_cannot_be_measured_are_named():
    texts = Dataset.from_dict({"text": ["a"], "labels": ["b"]})
    with pytest.raises(UserError, match="Shares by tokens need tokenised rows with a column input_ids"):
        sample_sizes(texts, "tokens")
    with pytest.raises(UserError, match="Column labels must hold lists of token ids, not string"):
        sample_sizes(texts, "supervised_tokens")
    with pytest.raises(UserError, match="Shares by tokens need tokenised rows"):
        row_size("tokens")({"text": "a"})
