from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.clean.corpus import balanced, heavy_value, length_outliers, repeats


def test_rows_over_four_times_the_mean_are_outliers():
    # mean (9 × 10 + 110) / 10 = 20: the limit is 80
    assert np.flatnonzero(length_outliers(np.array([10] * 9 + [110]))).tolist() == [9]
    assert not length_outliers(np.array([10] * 9 + [110]), factor=5.5).any()  # exactly the limit stays
    assert length_outliers(np.array([50]), 4, mean=10).all() and not len(length_outliers(np.array([])))


@given(st.lists(st.integers(0, 5), max_size=40))
def test_the_first_of_each_key_stays(keys):
    drop = repeats(np.array(keys, np.uint64))
    assert [key for key, gone in zip(keys, drop, strict=True) if not gone] == list(dict.fromkeys(keys))


@given(st.lists(st.integers(-1, 4), max_size=60), st.integers(0, 3), st.sampled_from([1.0, 2.0]))
def test_no_class_is_larger_than_the_ratio_allows(codes, seed, ratio):
    codes = np.array(codes, np.int64)
    keep = balanced(codes, seed, ratio)
    assert keep[codes < 0].all()
    before, after = (np.unique(codes[which], return_counts=True) for which in (codes >= 0, (codes >= 0) & keep))
    assert after[0].tolist() == before[0].tolist()
    if len(before[1]):
        assert after[1].tolist() == np.minimum(before[1], int(ratio * before[1].min())).tolist()
    assert np.array_equal(keep, balanced(codes, seed, ratio))


def test_what_is_cut_is_drawn_by_the_seed():
    codes = np.array([0] * 100 + [1] * 10)
    first, second = balanced(codes, 1), balanced(codes, 2)
    assert first[:100].sum() == second[:100].sum() == 10 and not np.array_equal(first, second)
    assert first[:50].any() and first[50:100].any()  # not the head of the file
    hashes = np.array([2**64 - 1] * 3 + [5], np.uint64)
    assert balanced(hashes, 0).sum() == 2  # unsigned codes are all classes


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ({"yes": 995, "no": 5}, ("yes", 0.995)),
        ({"yes": 99, "no": 1}, None),  # 99 % is not more than 99 %
        ({"yes": 2}, ("yes", 1.0)),
        ({"yes": 1}, None),
        ({}, None),
    ],
)
def test_a_value_that_holds_almost_all_is_named(counts, found):
    assert heavy_value(counts) == found
