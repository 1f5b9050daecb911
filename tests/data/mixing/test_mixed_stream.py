from __future__ import annotations

import itertools
import logging
from collections import Counter

import pytest
from datasets import Dataset, IterableDataset
from datasets.distributed import split_dataset_by_node
from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_stream_rows import GENERAL, first_ids, mixture, numbered, sharded
from torch.utils.data import DataLoader

from hf_recipes.core.errors import UserError
from hf_recipes.data.mixing.mix import mix_datasets


def is_general(row):
    return row["input_ids"][0] >= GENERAL


@pytest.mark.parametrize("unit", ["rows", "tokens"])
def test_every_beginning_of_a_stream_has_the_share_to_half_a_sample(unit):
    size = general = 0
    largest = 13 if unit == "tokens" else 1
    rows = list(mixture(unit=unit))
    for row in rows:
        sample = len(row["input_ids"]) if unit == "tokens" else 1
        size, general = size + sample, general + sample * is_general(row)
        assert abs(general - 0.15 * size) <= largest / 2 + 1e-9
    assert sorted(row["input_ids"][0] for row in rows if not is_general(row)) == list(range(160))  # the domain once
    assert [row["source"] for row in rows] == ["general" if is_general(row) else "orders" for row in rows]
    assert abs(general - (size - general) * 0.15 / 0.85) <= largest / 2


def test_d5_a_stream_of_850_domain_rows_makes_1000():
    domain = Dataset.from_dict({"input_ids": [[n] for n in range(850)]})
    rows = list(mix_datasets({"orders": domain, "general": numbered(GENERAL)}, general_share=0.15))
    assert len(rows) == 1000
    assert sum(map(is_general, rows)) == 150


def test_d7_domain_streams_are_mixed_and_not_one_after_the_other():
    parts = {"a": sharded(100, 1), "b": sharded(100, 1)}
    rows = list(mix_datasets({**parts, "general": numbered(GENERAL)}, general_share=0.2, buffer_size=10))
    for start in range(0, 240, 20):
        assert Counter(row["source"] for row in rows[start : start + 20]) == pytest.approx(
            {"a": 8, "b": 8, "general": 4}, abs=1
        )


def test_domain_datasets_of_unequal_size_end_together():
    small, large = (Dataset.from_dict({"input_ids": [[n]] * n}) for n in (50, 500))
    stream = mix_datasets({"small": small, "large": large, "general": numbered(GENERAL)}, general_share=0.1)
    sources = [row["source"] for row in stream]
    parts = [sources[start : start + 110].count("small") for start in range(0, 550, 110)]
    assert all(abs(part - 9) <= 1 for part in parts)  # 50 of 550 in 611 rows: 9 in 110


def test_d7_order_changes_by_epoch_and_seed_and_is_the_same_again():
    stream = mixture()
    first = first_ids(stream)
    assert first_ids(stream) == first
    stream.set_epoch(1)
    second = first_ids(stream)
    assert second != first
    assert sorted(n for n in second if n < GENERAL) == sorted(n for n in first if n < GENERAL)
    # Not only within buffers: the four shards of the domain come in another order too.
    assert [n // 40 for n in second if n < GENERAL][::40] != [n // 40 for n in first if n < GENERAL][::40]
    other = mixture(seed=4)
    assert first_ids(other) != first
    other.set_epoch(1)
    assert first_ids(other) != second
    stream.set_epoch(0)
    assert first_ids(stream) == first


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 180), st.sampled_from(["rows", "tokens"]), st.integers(1, 50), st.integers(0, 2), st.booleans())
def test_a_resumed_stream_goes_on_where_it_was(read, unit, buffer_size, epoch, repeats):
    def make():
        general = sharded(3, 2) if repeats else numbered(GENERAL)
        stream = mix_datasets(
            {"a": sharded(40, 4), "b": Dataset.from_dict({"input_ids": [[7]] * 9}), "general": general},
            general_share=0.15,
            unit=unit,
            buffer_size=buffer_size,
            max_repeats=7 if repeats else 1,
        )
        stream.set_epoch(epoch)
        return stream

    whole = list(make())
    stream = make()
    begun = list(itertools.islice(stream, read))
    resumed = make()
    resumed.load_state_dict(stream.state_dict())
    assert begun + list(resumed) == whole


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_share_one_stream(world_size):
    whole = first_ids(mixture())
    ranks = [first_ids(split_dataset_by_node(mixture(), rank, world_size)) for rank in range(world_size)]
    together = [row for rows in itertools.zip_longest(*ranks) for row in rows if row is not None]
    assert together == whole


def test_processes_of_a_loader_give_every_row_once():
    whole = first_ids(mixture())
    loader = DataLoader(mixture(), batch_size=None, num_workers=2)
    assert first_ids(loader) == whole


def test_reading_a_mixture_does_not_move_the_streams_it_is_made_of():
    domain = sharded(40, 4)
    before = domain.state_dict()
    list(mixture(domain))
    assert domain.state_dict() == before


def test_a_general_stream_that_ends_early_is_told_with_what_is_reached(caplog):
    parts = {"orders": sharded(170, 1), "general": sharded(10, 1)}
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        rows = list(mix_datasets(parts, general_share=0.2))
    assert len(rows) == 180
    # 10 of 180 rows; 42.5 are called for, which five times each of the ten gives.
    assert caplog.messages == [
        "The general stream is used up: from here on, the mixture has domain rows only.",
        "general_share 0.2 is not reached: with every general row used once the share is 0.05556 by rows; give more "
        "general data, or set general_share: 0.056, or max_repeats: 5.",
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="hf_recipes"):
        rows = list(mix_datasets(parts, general_share=0.2, max_repeats=9))
    assert Counter(Counter(first_ids(row for row in rows if row["source"] == "general")).values()) == {4: 8, 5: 2}
    assert caplog.messages == ["The general rows are too few for general_share 0.2: some are used 5 times."]


def test_a_general_stream_that_is_just_enough_is_not_told(caplog):
    with caplog.at_level(logging.INFO, logger="hf_recipes"):
        rows = list(mix_datasets({"a": sharded(85, 1), "general": sharded(15, 1)}, general_share=0.15))
    assert len(rows) == 100
    assert not caplog.messages


def test_without_a_general_stream_the_domain_is_given_alone(caplog):
    with caplog.at_level(logging.INFO, logger="hf_recipes"):
        rows = list(mix_datasets({"a": sharded(10, 1), "b": sharded(10, 1)}))
    assert len(rows) == 20
    assert caplog.messages == ["No dataset is called 'general', so general_share 0.15 is ignored."]


def test_a_share_of_zero_reads_no_general_row():
    def refuse():
        raise AssertionError("read")
        yield

    general = IterableDataset.from_generator(refuse)
    assert len(list(mix_datasets({"a": sharded(10, 1), "general": general}, general_share=0))) == 10


def test_columns_known_only_when_read_are_compared_then():
    with pytest.raises(UserError, match=r"'a' has the columns \['input_ids'\] and 'general' \['ids'\]: bring all"):
        list(mix_datasets({"a": sharded(10, 1), "general": numbered(0).map(_ids, remove_columns="input_ids")}))
    known = Dataset.from_dict({"text": ["a"]}).to_iterable_dataset()
    other = Dataset.from_dict({"texts": ["a"]}).to_iterable_dataset()
    with pytest.raises(UserError, match="bring all to the same columns"):
        mix_datasets({"a": known, "general": other})
    with pytest.raises(UserError, match="Shares by tokens need tokenised rows"):
        mix_datasets({"a": known, "general": known}, unit="tokens")
    with pytest.raises(UserError, match="Shares by supervised_tokens need tokenised rows"):
        list(mix_datasets({"a": sharded(10, 1), "general": numbered(0)}, unit="supervised_tokens"))


def _ids(row):
    return {"ids": row["input_ids"]}


def test_what_cannot_be_mixed_is_told():
    with pytest.raises(UserError, match="'a' is split by node already: mix first"):
        mix_datasets({"a": split_dataset_by_node(sharded(10, 1), 0, 2), "general": numbered(0)})
    with pytest.raises(UserError, match="buffer_size is a number of rows"):
        mixture(buffer_size=0)
    with pytest.raises(UserError, match="The domain streams hold no rows"):
        list(mix_datasets({"a": sharded(0, 1), "general": numbered(0)}))


def test_features_and_formats_are_kept():
    part = Dataset.from_dict({"input_ids": [[1], [2]]}).to_iterable_dataset().with_format("numpy")
    stream = mix_datasets({"a": part, "general": part}, general_share=0.5)
    assert list(stream.features) == ["input_ids", "source"]
    assert type(next(iter(stream))["input_ids"]).__name__ == "ndarray"
