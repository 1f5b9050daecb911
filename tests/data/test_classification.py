from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import CheckFailed, UserError
from hf_recipes.data.classification import (
    check_balance,
    check_classification_sources,
    prepare_classification,
    prior_entropy,
)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return {"path": str(path)}


def test_rows_are_split_numbered_and_accounted_for(tokenizer, tmp_path):
    rows = [{"text": f"message {index}", "label": "yes" if index % 3 else "no"} for index in range(30)]
    rows += [{"text": "", "label": "yes"}, {"text": "no label"}, {"text": 5, "label": "no"}]
    data = prepare_classification([write(tmp_path / "rows.jsonl", rows)], tokenizer, max_length=None)
    assert data.labels == ["no", "yes"]
    assert (len(data.train), len(data.eval)) == (27, 3)
    (source,) = data.report["sources"]
    assert (source["read"], source["kept"]) == (33, 30)
    assert sum(reason["count"] for reason in source["dropped"].values()) == 3
    first = data.train[0]
    text = tokenizer.decode(first["input_ids"])
    assert data.labels[first["labels"]] == next(row["label"] for row in rows if row["text"] == text)


def test_whole_numbers_are_labels_and_columns_can_be_renamed(tokenizer, tmp_path):
    source = write(tmp_path / "rows.jsonl", [{"body": f"m {i}", "stars": i % 2} for i in range(10)])
    source["columns"] = {"text": "body", "label": "stars"}
    assert prepare_classification([source], tokenizer, max_length=None).labels == ["0", "1"]


def test_long_texts_are_cut_and_counted(tokenizer, tmp_path):
    rows = [{"text": "word " * (50 if index == 0 else 2), "label": index % 2} for index in range(4)]
    data = prepare_classification([write(tmp_path / "r.jsonl", rows)], tokenizer, max_length=20, eval_share=0)
    assert data.report["truncated"] == 1
    assert max(map(len, data.train["input_ids"])) == 20
    assert data.eval is None


def test_a_label_over_99_percent_fails_the_check():
    with pytest.raises(CheckFailed, match=r"label 'a' holds 99\.5% of the training rows"):
        check_balance({"a": 199, "b": 1}, 0.99)
    check_balance({"a": 99, "b": 1}, 0.99)


@pytest.mark.parametrize("counts", [{}, {"only": 10}])
def test_fewer_than_two_labels_are_wrong_use(counts):
    with pytest.raises(UserError, match="needs at least two"):
        check_balance(counts, 0.99)


def test_a_file_without_labels_is_named(tmp_path):
    source = write(tmp_path / "r.jsonl", [{"text": "a"}, {"text": "b"}])
    with pytest.raises(UserError) as error:
        check_classification_sources([source])
    assert "r.jsonl" in str(error.value)
    assert "'label' is neither text nor a whole number" in str(error.value)


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 100), min_size=1, max_size=6))
def test_prior_entropy_lies_between_0_and_that_of_equal_classes(counts):
    entropy = prior_entropy(counts)
    assert -1e-12 <= entropy <= math.log(len(counts)) + 1e-12


def test_prior_entropy_of_a_fair_coin_is_ln_2():
    assert prior_entropy(Counter("ab")) == pytest.approx(math.log(2))
