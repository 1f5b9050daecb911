"""Rows of a batch found again in the data set by their tokens."""

from __future__ import annotations

import random

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.callbacks.find_rows import find_rows, piece_of

PAD = 0
ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=12)


def padded(ids, labels, length, pad=PAD):
    more = length - len(ids)
    return np.array(ids + [pad] * more), np.array(labels + [-100] * more)


def indices(matches):
    return [row.index for row in matches]


@settings(deadline=None, max_examples=60)
@given(ROWS, st.integers(0, 4), st.data())
def test_a_padded_row_is_found_and_whatever_else_is_found_would_look_the_same(rows, padding, data):
    labels = [data.draw(st.lists(st.booleans(), min_size=len(row), max_size=len(row))) for row in rows]
    examples = [
        {
            "input_ids": ids,
            "labels": [token if learned else -100 for token, learned in zip(ids, each, strict=True)],
            "row_id": f"file:{index}",
        }
        for index, (ids, each) in enumerate(zip(rows, labels, strict=True))
    ]
    wanted = data.draw(st.integers(0, len(rows) - 1))
    length = len(rows[wanted]) + padding
    ids, batch_labels = padded(examples[wanted]["input_ids"], examples[wanted]["labels"], length)
    for dataset in (examples, Dataset.from_list(examples)):
        (matches,), unknown = find_rows(dataset, [piece_of(ids, batch_labels, padded=True)], 60)
        assert unknown is None
        would_look_the_same = []
        for index, row in enumerate(examples):
            # Which token pads is not known to the search: it may be the one that the row ends with.
            other_ids, other_labels = padded(row["input_ids"], row["labels"], length, pad=int(ids[-1]))
            if np.array_equal(other_ids, ids) and np.array_equal(other_labels[1:], batch_labels[1:]):
                would_look_the_same.append(index)
        assert wanted in would_look_the_same
        assert indices(matches) == would_look_the_same[:10]
        assert all(row.row_id == f"file:{row.index}" and row.source is None for row in matches)


def test_labels_tell_rows_of_equal_tokens_apart_and_tokens_alone_count_where_none_agree():
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}]
    ids = np.array([5, 6, 7])
    for labels, expected in (([-100, -100, 7], [1]), ([-100, 6, 7], [0]), ([-100, -100, -100], [0, 1])):
        (matches,), _ = find_rows(rows, [piece_of(ids, np.array(labels), padded=False)], 60)
        assert indices(matches) == expected


def test_an_index_is_that_of_the_rows_as_trained_on():
    rows = Dataset.from_list([{"input_ids": [index, 9]} for index in range(30)]).shuffle(seed=1)
    (matches,), _ = find_rows(rows, [piece_of(np.array([17, 9]), None, padded=False)], 60)
    assert rows[matches[0].index]["input_ids"] == [17, 9]


def test_the_rows_of_a_stream_are_said_to_be_unknown():
    stream = IterableDataset.from_generator(lambda: iter([{"input_ids": [1]}]))
    found, unknown = find_rows(stream, [piece_of(np.array([1]), None, padded=False)], 60)
    assert found == [[]]
    assert unknown == "the rows of IterableDataset cannot be searched for input_ids"


def test_rows_made_when_they_are_asked_for_are_found_by_their_index():
    texts = Dataset.from_dict({"text": ["a", "bc"]})
    rows = texts.with_transform(lambda batch: {"input_ids": [list(map(ord, text)) for text in batch["text"]]})
    (matches,), unknown = find_rows(rows, [piece_of(np.array([98, 99]), None, padded=False)], 60)
    assert (indices(matches), unknown) == ([1], None)
    assert find_rows(texts, [piece_of(np.array([98, 99]), None, padded=False)], 60) == ([[]], None)


def test_a_search_that_takes_too_long_ends_and_says_so():
    rows = [{"input_ids": [index]} for index in range(1000)]
    (matches,), unknown = find_rows(rows, [piece_of(np.array([999]), None, padded=False)], 0.0)
    assert matches == []
    assert unknown == "the search was ended after 0 s"


def test_reading_the_data_set_draws_no_random_number_of_the_run():
    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return {"input_ids": [index + int(torch.rand(()) + np.random.rand() + random.random()) * 0]}

    def draws():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    expected = draws()
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    (matches,), _ = find_rows(Noisy(), [piece_of(np.array([2]), None, padded=False)], 60)
    assert indices(matches) == [2]
    assert draws() == expected
