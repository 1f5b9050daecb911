from __future__ import annotations

import logging
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.mixing.mixture import check_share, choose_mixture, shuffled, tell_short

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=40).map(np.array)
SOURCES = st.lists(SIZES, min_size=1, max_size=4)
SHARES = st.floats(0, 0.9)
SEEDS = st.integers(0, 9)


def ones(count):
    return np.ones(count, np.int64)


def size_of(general, mixture):
    return sum(int(sizes[rows].sum()) for sizes, rows in zip(general, mixture.chosen, strict=True))


def uses(mixture, general):
    """How often each row of each source is used."""
    return [
        np.bincount(rows, minlength=len(sizes)).tolist() for rows, sizes in zip(mixture.chosen, general, strict=True)
    ]


def test_d5_850_domain_rows_at_15_percent_take_150_general_ones():
    # g general rows of 850 + g are 15 %: g = 850 · 0.15 / 0.85 = 127.5 / 0.85 = 150, and 150 / 1,000 = 0.15.
    mixture = choose_mixture(850, [ones(5000)], 0.15, 42)
    assert len(mixture.chosen[0]) == 150
    assert mixture.share == 0.15
    assert not mixture.is_short
    assert mixture.chosen[0].dtype == np.int64


def test_seeded_choice_does_not_change_between_versions():
    # Ranks of the raw PCG64 stream, seeded by blake2b of the text: numpy promises the stream, hashlib the digest.
    # So these may only change with the code, and a run that is resumed with another code would see other rows.
    assert shuffled(8, 42).tolist() == [3, 6, 2, 1, 0, 4, 5, 7]
    assert choose_mixture(85, [ones(100)], 0.15, 42).chosen[0].tolist() == [
        *(0, 1, 11, 30, 32, 49, 56, 59, 63, 69, 77, 81, 83, 94, 99)
    ]


@given(st.integers(1, 500), SHARES, SEEDS)
def test_d5_rows_are_exact_to_one(domain, share, seed):
    mixture = choose_mixture(domain, [ones(3000), ones(3000)], share, seed)
    count = size_of([ones(3000)] * 2, mixture)
    # Of n = domain + count rows, count = share * n to the nearest row.
    assert abs(count - domain * share / (1 - share)) <= 0.5 + 1e-6
    assert mixture.share == pytest.approx(count / (domain + count))
    assert not mixture.is_short


@given(st.integers(1, 2000), SOURCES, SHARES, SEEDS, st.integers(1, 4), st.data())
def test_d5_tokens_are_exact_to_half_a_sample_or_all_is_used_and_told(domain, general, share, seed, repeats, data):
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=len(general), max_size=len(general)))
    mixture = choose_mixture(domain, general, share, seed, weights, repeats)
    target, reached = domain * share / (1 - share), size_of(general, mixture)
    half = max(sizes.max() for sizes in general) / 2
    everything = all(set(used) == {repeats} for used in uses(mixture, general))
    assert abs(reached - target) <= half + 1e-6 or (everything and reached < target)
    assert mixture.is_short == (everything and target - reached > half)
    assert mixture.share == pytest.approx(reached / (domain + reached))


@given(st.integers(1, 2000), SOURCES, SHARES, SEEDS, st.integers(1, 4))
def test_repeats_only_when_asked_and_then_evenly(domain, general, share, seed, repeats):
    mixture = choose_mixture(domain, general, share, seed, max_repeats=repeats)
    every = [count for used in uses(mixture, general) for count in used]
    assert max(every) <= repeats
    assert max(every) - min(every) <= 1
    assert mixture.most_uses == max(every)
    for rows in mixture.chosen:
        assert (np.diff(rows) >= 0).all()


@given(st.integers(1, 2000), SOURCES, SHARES, SHARES, SEEDS, st.integers(1, 3))
def test_a_larger_share_takes_the_rows_of_a_smaller_one_and_more(domain, general, one, other, seed, repeats):
    small, large = (choose_mixture(domain, general, share, seed, max_repeats=repeats) for share in sorted((one, other)))
    for few, many in zip(small.chosen, large.chosen, strict=True):
        assert Counter(few.tolist()) <= Counter(many.tolist())


@given(SEEDS)
def test_seeds_choose_other_rows(seed):
    first, again, other = (choose_mixture(100, [ones(1000)], 0.15, number).chosen[0] for number in (seed, seed, 77))
    assert first.tolist() == again.tolist() != other.tolist()


def test_no_part_of_a_source_is_favoured():
    # 1,500 of 10,000 rows: each tenth of the file gets 150 ± 4 standard deviations of a draw without repetition,
    # sqrt(1000 · 0.15 · 0.85 · 0.9) = 10.7.
    rows = choose_mixture(8500, [ones(10_000)], 0.15, 1).chosen[0]
    assert all(abs(count - 150) < 43 for count in np.histogram(rows, bins=10, range=(0, 10_000))[0])


@pytest.mark.parametrize(
    ("sizes", "weights", "expected"),
    [
        # 850 domain rows at 15 % call for 150 general ones; by 2 : 1 these are 100 and 50.
        ([1000, 1000], [2.0, 1.0], [100, 50]),
        # Where the first has only 30, the other takes over the rest.
        ([30, 1000], [2.0, 1.0], [30, 120]),
        # 10 are lacking of 50; the others, equal among each other, take over 110 and 30 more than their parts.
        ([10, 1000, 1000], None, [10, 70, 70]),
        ([75, 75], None, [75, 75]),
        ([0, 1000], None, [0, 150]),
    ],
)
def test_weights_share_out_and_a_small_source_is_made_up_for(sizes, weights, expected):
    mixture = choose_mixture(850, [ones(count) for count in sizes], 0.15, 0, weights)
    assert [len(rows) for rows in mixture.chosen] == expected


@given(SOURCES.filter(lambda sources: len(sources) > 1), st.floats(0.05, 0.5), SEEDS, st.data())
def test_weights_hold_by_tokens_where_no_source_is_short(general, share, seed, data):
    general = [np.tile(sizes, 2100 // sizes.sum() + 1) for sizes in general]  # at most 2,000 are called for
    weights = data.draw(st.lists(st.floats(0.5, 2), min_size=len(general), max_size=len(general)))
    mixture = choose_mixture(2000, general, share, seed, weights)
    reached = [int(sizes[rows].sum()) for sizes, rows in zip(general, mixture.chosen, strict=True)]
    for size, weight in zip(reached, weights, strict=True):
        # All that is taken has its middle before some point K of the scale, all else behind it: every size lies within
        # half a sample (M / 2) of weight · K, the sum of k sources within k M / 2, so a size is off its part of the
        # sum by M / 2 · (1 + k · part) at most.
        part = weight / sum(weights)
        assert abs(size - sum(reached) * part) <= 50 / 2 * (1 + len(general) * part) + 1e-6


def test_share_of_zero_or_no_general_source_takes_nothing():
    assert choose_mixture(3, [ones(5)], 0.0, 0).chosen[0].size == 0
    assert choose_mixture(3, [], 0.0, 0).chosen == []
    mixture = choose_mixture(3, [ones(0)], 0.5, 0)
    assert (mixture.share, mixture.is_short) == (0.0, True)


def test_d5_too_small_a_source_says_what_is_reached_and_what_to_set(caplog):
    # 100 of 270 rows are general: 0.3704. To half of the whole, 170 are lacking: each of the 100 twice is enough.
    mixture = choose_mixture(170, [ones(100)], 0.5, 0)
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        tell_short(mixture, "rows")
    (record,) = caplog.records
    assert "general_share 0.5 is not reached: with every general row used once the share is 0.3704 by rows" in (
        record.message
    )
    assert "or set general_share: 0.370, or max_repeats: 2." in record.message
    assert not choose_mixture(170, [ones(100)], 0.5, 0, max_repeats=2).is_short


def test_repeats_are_told(caplog):
    # 170 general rows out of 100: 70 of them twice.
    with caplog.at_level(logging.INFO, logger="hf_recipes"):
        tell_short(choose_mixture(170, [ones(100)], 0.5, 0, max_repeats=5), "rows")
    assert caplog.messages == ["The general rows are too few for general_share 0.5: some are used 2 times."]
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="hf_recipes"):
        tell_short(choose_mixture(170, [ones(1000)], 0.5, 0, max_repeats=5), "rows")
    assert not caplog.messages


@pytest.mark.parametrize("repeats", [0, -1, 1.5, True])
def test_repeats_that_are_no_count_are_refused(repeats):
    with pytest.raises(UserError, match="max_repeats is how often a general row may be used"):
        choose_mixture(1, [ones(1)], 0.1, 0, max_repeats=repeats)


@pytest.mark.parametrize("share", [-0.1, 1, 15, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(UserError, match="from 0 to below 1, not"):
        check_share(share, "rows")


def test_an_unknown_unit_is_refused():
    with pytest.raises(UserError, match="share_unit must be one of rows, tokens, supervised_tokens, not 'bytes'"):
        check_share(0.1, "bytes")
