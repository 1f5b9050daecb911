from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.inspection.histogram import histogram, percentiles

lengths = st.lists(st.integers(0, 100_000), min_size=1, max_size=200).map(lambda values: np.array(values, np.int32))


@given(lengths)
def test_every_length_is_in_the_bin_of_its_edges(values):
    shown = histogram(values)
    assert sum(shown.counts) == len(values)
    for count, low, high in zip(shown.counts, shown.edges[:-1], shown.edges[1:], strict=True):
        assert count == ((low <= values) & (values < high)).sum()
    assert len(shown.counts) <= 17  # sixteen, and one more when the first edge is rounded down


@given(lengths)
def test_percentiles_are_the_smallest_length_that_so_many_do_not_exceed(values):
    found = percentiles(values)
    for percent in (50, 90, 99):
        value = found[f"p{percent}"]
        assert (values <= value).sum() * 100 >= percent * len(values)
        assert (values < value).sum() * 100 < percent * len(values)
    assert found["max"] == values.max()


def test_edges_are_round():
    # 3 to 93: 91 lengths in 16 bins are 5.7 each, the next round width is 10.
    assert histogram(np.array([3, 93])).edges == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]


def test_nothing_to_show():
    assert histogram(np.zeros(0, np.int32)).counts == [0]
