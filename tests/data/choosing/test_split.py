from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.choosing.split import Splitter, fill, join_clusters

SHARE = st.floats(0, 0.9)


def keys_of(values):
    """A stand-in for text hashes: equal for equal values."""
    return np.array([hash(value) % 2**64 for value in values], np.uint64)


def split_alone(values, share, seed, strata=None):
    keys = keys_of(values)
    return Splitter(len(keys), seed).split(join_clusters(keys), keys, share, strata)


def test_a_tenth_is_held_out_at_random():
    values = list(range(1000))
    held_out = split_alone(values, 0.1, 1)
    assert held_out.sum() == 100
    assert not held_out[900:].all()  # not the tail of the file
    assert np.array_equal(held_out, split_alone(values, 0.1, 1))
    assert not np.array_equal(held_out, split_alone(values, 0.1, 2))


@given(st.lists(st.sampled_from(range(10)), max_size=40), SHARE, st.integers(0, 5))
def test_d4_duplicates_lie_on_one_side(values, share, seed):
    held_out = split_alone(values, share, seed)
    values = np.array(values)
    assert not set(values[held_out]) & set(values[~held_out])
    assert held_out.sum() <= max(1, round(share * len(values)))
    assert not held_out.all() or not len(values)


def test_d4_duplicates_lie_on_one_side_across_sources():
    keys = np.array([*range(50), *range(25, 75)], np.uint64)
    clusters, splitter = join_clusters(keys), Splitter(100, 3)
    first = splitter.split(clusters[:50], keys[:50], 0.3)
    second = splitter.split(clusters[50:], keys[50:], 0.3)
    assert not set(keys[:50][first]) & set(keys[50:][~second])
    assert first.sum() == second.sum() == 15


def test_no_share_holds_nothing_out_and_one_cluster_is_never_split():
    assert not split_alone([1, 2], 0, 1).any()
    assert not split_alone([1, 1, 1], 0.5, 1).any()


def test_rows_added_later_leave_most_others_on_their_side():
    before, after = split_alone(range(1000), 0.1, 1), split_alone(range(1010), 0.1, 1)
    # 10 more rows make the eval part one larger; what moves are the last few in its order, not one row in ten.
    assert (before != after[:1000]).sum() <= 10


@given(
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from("abc")), min_size=1, unique_by=lambda row: row[0]),
    st.floats(0.05, 0.6),
)
def test_strata_keep_their_proportions(rows, share):
    values, names = zip(*rows, strict=True)
    strata = keys_of(names)
    held_out = split_alone(values, share, 5, strata)
    for name in set(names):
        inside = np.array([other == name for other in names])
        # The share of a stratum to the nearest row, but for the remainders that make the whole come out right.
        assert abs(held_out[inside].sum() - share * inside.sum()) <= 1 + 1e-9


@given(st.lists(st.integers(1, 9), max_size=30), st.integers(0, 60))
def test_fill_takes_what_fits_in_order(sizes, room):
    sizes = np.array(sizes, np.int64)
    taken, left = [], room
    for size in sizes:  # the definition: one after another, passed over where it does not fit
        taken.append(bool(size <= left))
        left -= size if taken[-1] else 0
    assert fill(sizes, room).tolist() == taken


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(0, 6)), max_size=25))
def test_clusters_are_the_connected_components(rows):
    attributes = [np.array(column, np.int64) for column in zip(*rows, strict=True)] or [np.empty(0, np.int64)]
    labels = join_clusters(*attributes)
    expected = list(range(len(rows)))
    for _ in rows:  # the definition: the smallest number reachable over shared values
        for i, first in enumerate(rows):
            for j, second in enumerate(rows):
                if any(x == y for x, y in zip(first, second, strict=True)):
                    expected[i] = expected[j] = min(expected[i], expected[j])
    assert labels.tolist() == expected


def test_a_given_eval_set_takes_its_clusters():
    keys = np.array([1, 2, 3, 1, 4, 5, 6], np.uint64)
    clusters, splitter = join_clusters(keys), Splitter(7, 0)
    splitter.hold_out_all(clusters[:3])
    assert splitter.split(clusters[3:], keys[3:], 0.25).tolist() == [True, False, False, False]
