from __future__ import annotations

from collections import Counter

import numpy as np
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.data.inspection import scan as scan_module
from hf_recipes.data.inspection.scan import scan_tokens, spaced

END, BOS = 2, 1
row = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=8)
datasets_of_rows = st.lists(st.tuples(row, st.sampled_from(["chat", "books"])), min_size=1, max_size=12)


def build(rows):
    return Dataset.from_dict(
        {
            "input_ids": [[token for token, _ in tokens] for tokens, _ in rows],
            "labels": [[token if learned else -100 for token, learned in tokens] for tokens, _ in rows],
            "source": [source for _, source in rows],
            "row_id": [f"f:{number}" for number in range(len(rows))],
        }
    )


def scanned(dataset, **options):
    return scan_tokens(dataset, chat_sources=["chat"], end_of_turn_id=END, bos_token_id=BOS, **options)


@settings(max_examples=60, deadline=None)
@given(datasets_of_rows)
def test_counts_equal_those_of_plain_loops(rows):
    scan_module.CHUNK_ROWS, kept = 3, scan_module.CHUNK_ROWS  # several chunks even of a few rows
    try:
        scan = scanned(build(rows))
    finally:
        scan_module.CHUNK_ROWS = kept
    first, last, ends, wholes = Counter(), Counter(), Counter(), Counter()
    for tokens, source in rows:
        if source != "chat":
            continue
        labels = [token if learned else None for token, learned in tokens]
        ends["all"] += 1
        ends["learned"] += END in labels
        wholes[tuple(label for label in labels if label is not None)] += 1
        for index, label in enumerate(labels):
            if label is not None and (index == 0 or labels[index - 1] is None):
                first[label] += 1
            if label is not None and (index == len(labels) - 1 or labels[index + 1] is None):
                last[label] += 1
    assert scan.lengths.tolist() == [len(tokens) for tokens, _ in rows]
    assert scan.learned.tolist() == [sum(learned for _, learned in tokens) for tokens, _ in rows]
    assert (scan.first, scan.last) == (first, last)
    assert scan.conversations == ends["all"]
    if ends["all"]:
        assert (scan.ends["chat"].samples, scan.ends["chat"].learn_it) == (ends["all"], ends["learned"])
        assert scan.heaviest.count == max(wholes.values()) == wholes[tuple(scan.heaviest.token_ids)]
    doubled = [f"f:{n}" for n, (tokens, _) in enumerate(rows) if [t for t, _ in tokens[:2]] == [BOS, BOS]]
    assert scan.doubled_bos == doubled


def test_selected_rows_are_scanned_and_no_others():
    dataset = build([([(token, True)] * (token + 1), "chat") for token in range(5)]).select([4, 1])
    assert scanned(dataset).lengths.tolist() == [5, 2]


def test_large_sets_are_scanned_in_part():
    dataset = build([([(3, True)] * (1 + number % 2), "chat") for number in range(100)])
    scan = scanned(dataset, limit=10)
    assert (scan.rows, scan.of_rows) == (10, 100)


@given(st.integers(0, 10**9), st.integers(1, 50))
def test_positions_are_even_and_inside(rows, limit):
    positions = spaced(rows, limit)
    assert len(positions) == min(rows, limit)
    assert len(set(positions.tolist())) == len(positions)
    if rows:
        assert positions.min() == 0
        assert positions.max() < rows
    if len(positions) > 1:
        assert np.ptp(np.diff(positions)) <= 1
