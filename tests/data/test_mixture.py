from __future__ import annotations

import logging

import pytest
from datasets import Dataset
from hypothesis import assume, given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.mixture import choose_mixture, mix_datasets

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=40)


@given(st.integers(1, 500), st.floats(0, 0.6), st.integers(0, 9))
def test_d5_rows_are_exact_to_one(domain, share, seed):
    mixture = choose_mixture([1] * domain, [[1] * 1000], share, seed)
    chosen = len(mixture.chosen[0])
    # Of n = domain + chosen rows, chosen = share * n to the nearest row.
    assert abs(chosen - domain * share / (1 - share)) <= 0.5
    assert mixture.share == pytest.approx(chosen / (domain + chosen))
    assert not mixture.is_short


@given(SIZES, st.lists(SIZES, min_size=1, max_size=3), st.floats(0, 0.6), st.integers(0, 9), st.data())
def test_d5_tokens_are_exact_to_half_a_sample_or_all_is_used_and_told(domain, general, share, seed, data):
    weights = data.draw(st.lists(st.floats(0.1, 10), min_size=len(general), max_size=len(general)))
    mixture = choose_mixture(domain, general, share, seed, weights)
    target = sum(domain) * share / (1 - share)
    reached = sum(sizes[index] for sizes, rows in zip(general, mixture.chosen, strict=True) for index in rows)
    half = max(size for sizes in general for size in sizes) / 2
    everything = all(len(rows) == len(sizes) for sizes, rows in zip(general, mixture.chosen, strict=True))
    assert abs(reached - target) <= half + 1e-6 or (everything and reached < target and mixture.is_short)
    assert mixture.is_short == (everything and target - reached > half)
    for rows in mixture.chosen:
        assert rows == sorted(set(rows))  # without repetition


@given(SIZES, SIZES, st.integers(0, 9))
def test_a_larger_share_keeps_the_rows_of_a_smaller_one(domain, general, seed):
    small, large = (set(choose_mixture(domain, [general], share, seed).chosen[0]) for share in (0.1, 0.3))
    assert small <= large


@given(st.integers(0, 9))
def test_seeds_choose_other_rows(seed):
    first, again, other = (
        choose_mixture([1] * 100, [[1] * 1000], 0.15, number).chosen for number in (seed, seed, seed + 1)
    )
    assert first == again != other


def test_weights_share_out_and_a_small_source_is_made_up_for():
    # 850 domain rows at 15 % call for 150 general ones; by 2 : 1 these are 100 and 50.
    mixture = choose_mixture([1] * 850, [[1] * 1000, [1] * 1000], 0.15, 0, [2.0, 1.0])
    assert [len(rows) for rows in mixture.chosen] == [100, 50]
    mixture = choose_mixture([1] * 850, [[1] * 30, [1] * 1000], 0.15, 0, [2.0, 1.0])
    assert [len(rows) for rows in mixture.chosen] == [30, 120]


@pytest.fixture
def sets():
    def make(count, first):
        rows = [list(range(first, first + 1 + index % 7)) for index in range(count)]
        return Dataset.from_dict({"input_ids": rows, "labels": [[-100, *row[1:]] for row in rows]})

    return make(170, 0), make(100, 1000)


@pytest.mark.parametrize("unit", ["rows", "tokens", "supervised_tokens"])
def test_d5_mixed_dataset_has_the_share_the_source_and_a_seeded_order(sets, unit):
    domain, general = sets
    mixed = mix_datasets(domain, general, 0.15, unit, seed=5)

    def size(rows):
        column = {"rows": lambda row: 1, "tokens": lambda row: len(row["input_ids"])}.get(
            unit, lambda row: sum(label >= 0 for label in row["labels"])
        )
        return sum(column(row) for row in rows)

    share = size([row for row in mixed if row["source"] == "general"]) / size(mixed)
    assert share == pytest.approx(0.15, abs=3.5 / size(mixed))  # half of the longest sample
    assert sum(row["source"] == "domain" for row in mixed) == 170
    assert mixed["source"][:170] != ["domain"] * 170
    assert mix_datasets(domain, general, 0.15, unit, seed=5).to_list() == mixed.to_list()
    assert mix_datasets(domain, general, 0.15, unit, seed=6).to_list() != mixed.to_list()


def test_d5_too_small_a_source_says_what_is_reached_and_what_to_set(sets, caplog):
    domain, general = sets
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        mixed = mix_datasets(domain, general, 0.5, seed=0)
    assert len(mixed) == 270
    # 100 of 270 rows are general: 0.3704.
    (record,) = caplog.records
    assert "general_share 0.5 is not reached" in record.message
    assert "0.3704 by rows" in record.message and "general_share: 0.370" in record.message


def test_wrong_share_unit_or_columns_are_named(sets):
    domain, general = sets
    with pytest.raises(UserError, match="from 0 to below 1, not 15"):
        mix_datasets(domain, general, 15)
    with pytest.raises(UserError, match="share_unit must be one of"):
        mix_datasets(domain, general, 0.1, "bytes")
    with pytest.raises(UserError, match="bring both to the same columns"):
        mix_datasets(domain, general.remove_columns("labels"), 0.1)
    with pytest.raises(UserError, match="need a tokenised dataset"):
        mix_datasets(domain.remove_columns("labels"), general.remove_columns("labels"), 0.1, "supervised_tokens")


def test_source_columns_that_are_there_are_kept(sets):
    domain, general = (part.add_column("source", [name] * len(part)) for part, name in zip(sets, "ab", strict=True))
    assert set(mix_datasets(domain, general, 0.2)["source"]) == {"a", "b"}


@given(SIZES)
def test_share_of_zero_takes_nothing(general):
    assume(general)
    assert choose_mixture([1, 2], [general], 0.0, 0).chosen == [[]]
