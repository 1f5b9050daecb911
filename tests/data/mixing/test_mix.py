from __future__ import annotations

import logging
from collections import Counter

import pytest
from datasets import Dataset, DatasetDict, IterableDatasetDict, List, Value

from hf_recipes.core.errors import UserError
from hf_recipes.data.mixing.mix import mix_datasets


def tokenised(count, first):
    rows = [list(range(first, first + 1 + index % 7)) for index in range(count)]
    return Dataset.from_dict({"input_ids": rows, "labels": [[-100, *row[1:]] for row in rows]})


@pytest.fixture
def domain():
    return tokenised(170, 0)


@pytest.fixture
def general():
    return tokenised(100, 1000)


def size(row, unit):
    return {
        "rows": 1,
        "tokens": len(row["input_ids"]),
        "supervised_tokens": sum(label != -100 for label in row["labels"]),
    }[unit]


def test_d5_850_domain_rows_at_15_percent_make_1000():
    domain, general = (Dataset.from_dict({"text": [f"{name}{n}" for n in range(count)]}) for name, count in SETS)
    mixed = mix_datasets({"orders": domain, "general": general}, general_share=0.15, seed=1)
    assert len(mixed) == 1000
    assert Counter(mixed["source"]) == {"orders": 850, "general": 150}
    assert len(set(mixed["text"])) == 1000  # nothing twice, all of the domain once
    # Shuffled: 15 of every hundred in expectation, never 60 or none of them.
    parts = [mixed["source"][start : start + 100].count("general") for start in range(0, 1000, 100)]
    assert min(parts) > 0 and max(parts) < 40


SETS = (("d", 850), ("g", 5000))


@pytest.mark.parametrize("unit", ["rows", "tokens", "supervised_tokens"])
def test_d5_mixed_dataset_has_the_share_the_source_and_a_seeded_order(domain, general, unit):
    mixed = mix_datasets({"orders": domain, "general": general}, general_share=0.15, unit=unit, seed=5)
    total = sum(size(row, unit) for row in mixed)
    share = sum(size(row, unit) for row in mixed if row["source"] == "general") / total
    assert share == pytest.approx(0.15, abs=3.5 / total)  # half of the longest sample
    assert sum(row["source"] == "orders" for row in mixed) == 170
    again, other = (
        mix_datasets({"orders": domain, "general": general}, general_share=0.15, unit=unit, seed=seed)
        for seed in (5, 6)
    )
    assert again.to_list() == mixed.to_list() != other.to_list()


def test_several_domain_and_general_datasets_by_weight(domain, general):
    more = {"chat": general, "maths": tokenised(300, 2000)}
    mixed = mix_datasets(
        {"a": domain, "b": tokenised(170, 500), "general": more}, general_share=0.15, weights={"chat": 2, "maths": 1}
    )
    # 340 domain rows at 15 % call for 60 general ones, by 2 : 1.
    assert Counter(mixed["source"]) == {"a": 170, "b": 170, "chat": 40, "maths": 20}


def test_rows_repeat_evenly_when_asked(domain, general):
    mixed = mix_datasets({"a": domain, "general": general.select(range(20))}, general_share=0.2, max_repeats=3)
    # 170 · 0.2 / 0.8 = 42.5: 42 of 20 rows, so that two of them are used three times.
    counts = Counter(tuple(row["input_ids"]) for row in mixed if row["source"] == "general")
    rows = Counter(tuple(row) for row in general.select(range(20))["input_ids"])
    assert sum(counts.values()) == 42
    assert sum(counts.values()) - 2 * sum(rows.values()) == 2
    assert all(2 * rows[row] <= counts[row] <= 3 * rows[row] for row in rows)


def test_selected_and_shuffled_datasets_keep_their_rows(domain, general):
    mixed = mix_datasets({"a": domain.shuffle(seed=1).select(range(50, 100)), "general": general.shuffle(seed=2)})
    assert Counter(mixed["source"]) == {"a": 50, "general": 9}
    expected = Counter(map(tuple, domain.shuffle(seed=1).select(range(50, 100))["input_ids"]))
    assert Counter(tuple(row["input_ids"]) for row in mixed if row["source"] == "a") == expected


def test_source_columns_that_are_there_are_kept(domain, general):
    mine = domain.add_column("source", ["mine"] * len(domain))
    mixed = mix_datasets({"a": mine, "general": general}, general_share=0.2)
    assert set(mixed["source"]) == {"mine", "general"}


def test_d5_too_small_a_general_dataset_is_told(domain, general, caplog):
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        mixed = mix_datasets({"a": domain, "general": general}, general_share=0.5)
    assert len(mixed) == 270
    assert "share is 0.3704 by rows" in caplog.text


def test_without_a_general_dataset_the_share_is_ignored_and_told(domain, caplog):
    with caplog.at_level(logging.INFO, logger="hf_recipes"):
        mixed = mix_datasets({"a": domain, "b": domain})
    assert len(mixed) == 340
    assert caplog.messages == ["No dataset is called 'general', so general_share 0.15 is ignored."]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general_share": 15}, "from 0 to below 1, not 15"),
        ({"unit": "bytes"}, "^unit must be one of"),
        ({"max_repeats": 0}, "max_repeats is how often"),
        ({"weights": {"generl": 1}}, r"weights names 'generl' \(did you mean 'general'\?\)"),
        ({"weights": {"general": 0}}, "must be a number above 0, not 0"),
        ({"weights": {"orders": 2}}, "all of a domain dataset is used"),
    ],
)
def test_wrong_settings_are_named(domain, general, changes, message):
    with pytest.raises(UserError, match=message):
        mix_datasets({"orders": domain, "general": general}, **changes)


def test_wrong_datasets_are_named(domain, general):
    with pytest.raises(
        UserError, match=r"has the columns \['input_ids', 'labels'\] and 'general' \['input_ids'\]: bring"
    ):
        mix_datasets({"orders": domain, "general": general.remove_columns("labels")})
    wider = general.cast_column("labels", List(Value("int32")))
    with pytest.raises(UserError, match=r"Column 'labels' is .*int64.* in 'orders' and .*int32.* in 'general': bring"):
        mix_datasets({"orders": domain, "general": wider})
    with pytest.raises(UserError, match="'general' is a dictionary of the splits train, test: give one of them"):
        mix_datasets({"orders": domain, "general": DatasetDict(train=general, test=general)})
    with pytest.raises(UserError, match="'general' is a dictionary of the splits train: give one of them"):
        mix_datasets({"orders": domain, "general": IterableDatasetDict(train=general.to_iterable_dataset())})
    with pytest.raises(UserError, match="'orders' must be a Dataset or an IterableDataset, not list"):
        mix_datasets({"orders": [1], "general": general})
    with pytest.raises(UserError, match="Two datasets are called 'orders'"):
        mix_datasets({"orders": domain, "general": {"orders": general}})
    with pytest.raises(UserError, match="no domain dataset"):
        mix_datasets({"general": general})
    with pytest.raises(UserError, match="domain datasets hold no rows"):
        mix_datasets({"orders": domain.select([]), "general": general})
    texts = Dataset.from_dict({"text": ["a"]})
    with pytest.raises(UserError, match="need tokenised rows with a column labels"):
        mix_datasets({"orders": texts, "general": texts}, unit="supervised_tokens")
