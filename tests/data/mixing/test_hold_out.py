from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.data.mixing.hold_out import held_out


@given(st.floats(0, 1), st.integers(0, 99), st.sampled_from([1, 2**20, 2**44]))
def test_a_share_of_the_groups_is_held_out_whatever_their_numbers(share, seed, step):
    flags = held_out(np.arange(20_000, dtype=np.uint64) * np.uint64(step), share, seed)
    # Five standard deviations of 20,000 draws, sqrt(20000 · s · (1 - s)) each.
    assert abs(int(flags.sum()) - 20_000 * share) <= 5 * (20_000 * share * (1 - share)) ** 0.5 + 1


@given(st.lists(st.integers(0, 2**64 - 1)), st.floats(0, 1), st.floats(0, 1), st.integers(0, 9))
def test_a_group_has_one_side_and_a_larger_share_holds_out_the_same_and_more(numbers, one, other, seed):
    groups = np.array(numbers * 2, np.uint64)
    few, many = (held_out(groups, share, seed) for share in sorted((one, other)))
    assert (few[: len(numbers)] == few[len(numbers) :]).all()
    assert (few <= many).all()
    assert held_out(groups, 1, seed).all()
    assert not held_out(groups, 0, seed).any()


def test_seeds_hold_out_other_groups():
    groups = np.arange(1000, dtype=np.uint64)
    assert (held_out(groups, 0.5, 1) != held_out(groups, 0.5, 2)).sum() > 400
