from __future__ import annotations

import pickle
import time

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.packing import Bins, pack, packed_dataset, sample_lengths

LIMIT = 30
LENGTHS = st.lists(st.integers(1, LIMIT), max_size=60)


def loads(bins, lengths):
    return [int(np.asarray(lengths)[bins[index]].sum()) for index in range(len(bins))]


def naive_best_fit_decreasing(lengths, limit):
    """The textbook loop: each sample, longest first, into the fullest bin it fits into."""
    bins = []
    for length in sorted(lengths, reverse=True):
        fitting = [index for index, load in enumerate(bins) if load + length <= limit]
        if fitting:
            bins[max(fitting, key=bins.__getitem__)] += length
        else:
            bins.append(length)
    return bins


@given(LENGTHS, st.integers(0, 5))
def test_every_sample_is_in_one_row_and_no_row_too_long(lengths, seed):
    bins = pack(lengths, LIMIT, seed)
    assert sorted(bins.rows.tolist()) == list(range(len(lengths)))
    assert np.diff(bins.offsets).min(initial=1) >= 1
    assert max(loads(bins, lengths), default=0) <= LIMIT


@given(LENGTHS, st.integers(0, 5))
def test_rows_are_filled_as_by_the_textbook(lengths, seed):
    assert sorted(loads(pack(lengths, LIMIT, seed), lengths)) == sorted(naive_best_fit_decreasing(lengths, LIMIT))


@given(LENGTHS)
def test_no_two_rows_could_have_been_one(lengths):
    # The bound of every any-fit packing: what opened the later bin did not fit into the earlier one.
    fill = sorted(loads(pack(lengths, LIMIT, 0), lengths))
    assert len(fill) < 2 or fill[0] + fill[1] > LIMIT


@given(LENGTHS, st.integers(0, 5))
def test_the_seed_alone_decides(lengths, seed):
    one, other = pack(lengths, LIMIT, seed), pack(np.array(lengths), LIMIT, seed)
    assert one.rows.tolist() == other.rows.tolist()
    assert one.offsets.tolist() == other.offsets.tolist()


def test_another_seed_mixes_other_samples_and_the_order_of_rows_is_random():
    lengths = np.random.default_rng(0).integers(1, LIMIT + 1, 500)
    first, second = (
        [frozenset(bins[index].tolist()) for index in range(len(bins))]
        for bins in (pack(lengths, LIMIT, 0), pack(lengths, LIMIT, 1))
    )
    assert len(set(first) & set(second)) < len(first) / 2
    # In the order they were opened, the rows with the longest samples would all come first.
    longest = [lengths[list(row)].max() for row in first]
    assert np.mean(longest[: len(longest) // 2]) == pytest.approx(np.mean(longest), rel=0.1)


def test_chat_like_lengths_pack_to_within_a_thousandth_of_the_tokens():
    lengths = np.clip(np.random.default_rng(0).lognormal(5, 0.8, 50_000), 1, 2048).astype(int)
    assert len(pack(lengths, 2048, 0)) <= 1.001 * lengths.sum() / 2048 + 1


@pytest.mark.parametrize("limit", [2048, 32_768])
def test_a_million_samples_take_seconds(limit):
    lengths = np.random.default_rng(0).integers(1, limit + 1, 1_000_000)
    start = time.process_time()
    pack(lengths, limit, 0)
    assert time.process_time() - start < 10  # about 1 on a slow core; a loop over samples and bins takes hours


@pytest.mark.parametrize("wrong", [0, 9])
def test_a_sample_that_cannot_be_packed_whole_is_named(wrong):
    with pytest.raises(UserError, match=f"Sample 2 has {wrong} tokens"):
        pack([3, 8, wrong, 20], 8, 0)


@pytest.fixture(scope="module")
def samples():
    rng = np.random.default_rng(0)
    rows = []
    for index, length in enumerate((4, 1, 6, 2, 5)):
        ids = rng.integers(3, 400, length).tolist()
        rows.append({"input_ids": ids, "labels": [-100, *ids[1:]], "source": "x", "row_id": f"f:{index}"})
    return Dataset.from_list(rows)


def test_lengths_are_read_without_the_tokens_and_through_a_selection(samples):
    assert sample_lengths(samples).tolist() == [4, 1, 6, 2, 5]
    assert sample_lengths(samples.select([2, 0, 2])).tolist() == [6, 4, 6]
    assert sample_lengths(samples.select([])).tolist() == []
    assert sample_lengths(samples.add_column("length", [9, 8, 7, 6, 5])).tolist() == [9, 8, 7, 6, 5]


def test_a_row_is_its_samples_one_after_the_other(samples):
    packed = packed_dataset(samples, Bins(rows=np.array([2, 1, 4, 0, 3]), offsets=np.array([0, 2, 5])))
    assert len(packed) == 2
    first, second = packed[0], packed[1]
    assert first["input_ids"].tolist() == samples[2]["input_ids"] + samples[1]["input_ids"]
    assert first["position_ids"].tolist() == [0, 1, 2, 3, 4, 5, 0]
    assert second["input_ids"].tolist() == [
        *samples[4]["input_ids"],
        *samples[0]["input_ids"],
        *samples[3]["input_ids"],
    ]
    assert second["position_ids"].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 0, 1]
    assert set(first) == {"input_ids", "labels", "position_ids"}
    for row in (packed[:], pickle.loads(pickle.dumps(packed))[:]):
        assert [ids.tolist() for ids in row["input_ids"]] == [first["input_ids"].tolist(), second["input_ids"].tolist()]
        assert [ids.tolist() for ids in row["position_ids"]] == [[*range(6), 0], [*range(5), *range(4), 0, 1]]


def test_no_sample_predicts_the_first_token_of_the_next():
    # As with plain text, where every token is learned.
    samples = Dataset.from_list(
        [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}, {"input_ids": [8, 9], "labels": [8, 9]}]
    )
    packed = packed_dataset(samples, Bins(rows=np.array([0, 1]), offsets=np.array([0, 2])))
    assert packed[0]["labels"].tolist() == [-100, 6, 7, -100, 9]
    assert samples[1]["labels"] == [8, 9]


@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=12), min_size=1, max_size=20))
def test_packing_loses_no_token_and_no_label(rows):
    samples = Dataset.from_list([{"input_ids": ids, "labels": [-100, *ids[1:]]} for ids in rows])
    packed = packed_dataset(samples, pack(sample_lengths(samples), 12, 0))[:]
    for name in ("input_ids", "labels"):
        unpacked = sorted(value for row in samples[name] for value in row)
        assert sorted(np.concatenate(packed[name]).tolist()) == unpacked
    starts = [np.flatnonzero(positions == 0) for positions in packed["position_ids"]]
    cut = [np.split(ids, at[1:]) for ids, at in zip(packed["input_ids"], starts, strict=True)]
    documents = [part.tolist() for parts in cut for part in parts]
    assert sorted(documents) == sorted(rows)
