from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.clean import joining
from hf_recipes.data.clean.joining import join_pairs, join_similar, settle

PAIRS = st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=30)


def _components(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    labels = list(range(count))
    for _ in range(count):
        for one, other in pairs:
            labels[one] = labels[other] = min(labels[one], labels[other])
    return labels


@given(PAIRS)
def test_clusters_are_the_connected_components(pairs):
    labels = np.arange(20)
    for some in (pairs[::2], pairs[1::2]):
        array = np.array(some, np.int64).reshape(-1, 2)
        join_pairs(labels, array[:, 0], array[:, 1])
    settle(labels)
    assert labels.tolist() == _components(20, pairs)


@given(st.integers(2, 60), st.integers(1, 4), st.integers(0, 10_000), st.sampled_from([2, 8]))
def test_all_similar_pairs_of_a_group_are_joined(count, groups, seed, largest_small):
    rng = np.random.default_rng(seed)
    keys, places = rng.integers(0, groups, count), rng.integers(0, 3 * count, count)

    def similar(left, right):
        return np.abs(places[left] - places[right]) <= 2

    labels, before = np.arange(count), joining._SMALL
    joining._SMALL = largest_small  # small and large groups go different ways
    try:
        join_similar(labels, keys, similar, np.argsort)
    finally:
        joining._SMALL = before
    pairs = [
        (one, other)
        for one in range(count)
        for other in range(one)
        if keys[one] == keys[other] and abs(places[one] - places[other]) <= 2
    ]
    assert labels.tolist() == _components(count, pairs)
