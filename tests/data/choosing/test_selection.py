"""Which samples are used: corpus rules, groups, strata, given eval sets, leakage."""

from __future__ import annotations

import logging
import random

import pytest
from chat_families import family_tokenizer
from row_files import write_rows

from hf_recipes.core.errors import UserError
from hf_recipes.data.prepare import prepare_data

WORDS = [f"word{number}" for number in range(400)]


@pytest.fixture(scope="module")
def chatml():
    return family_tokenizer("chatml")


@pytest.fixture
def prepare(chatml, tmp_path):
    def run(*sources, **settings):
        specs = []
        for number, (rows, *more) in enumerate(sources):
            file = write_rows(tmp_path / f"source{number}.jsonl", rows)
            specs.append({"path": str(file), **(more[0] if more else {})})
        return prepare_data(specs, chatml, **{"max_length": None, "cache_dir": tmp_path / "cache", **settings})

    return run


def sentence(seed, count=12):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def rows_of(numbers, **fields):
    return [{"instruction": sentence(n), "output": sentence(-n - 1), **fields} for n in numbers]


def row_numbers(dataset):
    return sorted(int(row_id.rpartition(":")[2]) for row_id in dataset["row_id"])


def test_d4_rows_of_one_group_lie_on_one_side(prepare):
    rows = [{**row, "talk": index // 5} for index, row in enumerate(rows_of(range(100)))]
    data = prepare((rows, {"group_by": "talk"}))
    sides = [{(number - 1) // 5 for number in row_numbers(part)} for part in (data.train, data.eval)]
    assert not sides[0] & sides[1] and len(data.eval) == 10


def test_a_row_without_the_group_field_is_dropped_and_told(prepare):
    rows = [*rows_of(range(10), talk=1), *rows_of([11])]
    report = prepare((rows, {"group_by": "talk"})).report
    assert list(report["sources"][0]["dropped"]) == ["field 'talk', which group_by names, is missing"]


def test_strata_keep_their_proportions(prepare):
    rows = rows_of(range(80), kind="a") + rows_of(range(80, 100), kind="b")
    data = prepare((rows, {"stratify_by": "kind"}), eval_share=0.2)
    held_out = row_numbers(data.eval)
    # A fifth of 80 and a fifth of 20.
    assert sum(number <= 80 for number in held_out) == 16 and sum(number > 80 for number in held_out) == 4


def test_a_given_eval_set_is_used_whole_and_its_rows_are_not_trained_on(prepare, caplog):
    given = rows_of(range(5)) + rows_of([0])  # with a repetition, which stays
    data = prepare((rows_of(range(50)),), (given, {"eval_share": 1}))
    assert data.eval["source"] == ["source1"] * 6
    assert len(data.train) == 45  # and the training source is not split
    dropped = data.report["sources"][0]["dropped"]
    assert {reason: entry["count"] for reason, entry in dropped.items()} == {"stands in a given eval set too": 5}
    assert data.report["leakage"]["exact"]["count"] == 0


def test_a_near_duplicate_of_a_given_eval_row_is_told_or_dropped_where_asked(prepare, caplog):
    texts = [sentence(number, 60) for number in range(20)]
    rows = [{"text": text} for text in texts]
    given = [{"text": text + " and one more"} for text in texts[:5]]
    told = prepare((rows,), (given, {"eval_share": 1}))
    assert len(told.train) == 20 and told.report["leakage"]["near"]["count"] == 5
    dropped = prepare((rows,), (given, {"eval_share": 1}), clean={"duplicates": "near"})
    assert len(dropped.train) == 15 and dropped.report["leakage"]["near"]["count"] == 0
    assert "near duplicate of a given eval row" in dropped.report["sources"][0]["dropped"]


def test_what_one_source_trains_on_no_other_holds_out(prepare):
    shared = rows_of(range(30))
    for sources in (((shared, {"eval_share": 0}), (shared,)), ((shared,), (shared, {"eval_share": 0}))):
        data = prepare(*sources, eval_share=0.3)
        assert data.report["leakage"]["exact"]["count"] == 0


def test_one_templated_source_leaves_the_near_duplicates_of_the_others_together(prepare, caplog):
    templated = [{"text": sentence(0, 60) + f" {number}"} for number in range(40)]
    pairs = [{"text": sentence(100 + number // 2, 60) + f" {number % 2}"} for number in range(80)]
    data = prepare((templated,), (pairs,), eval_share=0.3)
    assert caplog.text.count("are near duplicates of so many others") == 1
    held_out = set(row_numbers(data.eval.filter(lambda row: row["source"] == "source1")))
    assert held_out and all((row - 1 ^ 1) + 1 in held_out for row in held_out)  # both of a pair


def test_rows_that_are_joined_to_a_given_eval_row_only_over_others_stay(prepare):
    """A chain A ~ B ~ given: A is unlike the given row."""
    words = sentence(3, 140).split()
    first, second, third = ({"text": " ".join(words[start : start + 120])} for start in (0, 7, 14))
    rows = [first, second, {"text": sentence(9, 60)}]
    data = prepare((rows,), ([third], {"eval_share": 1}), clean={"duplicates": "near"})
    assert sorted(row_numbers(data.train)) == [1, 3]


def test_nothing_left_to_train_on_is_told(prepare):
    with pytest.raises(UserError, match="No row is left to train on"):
        prepare((rows_of(range(5)),), (rows_of(range(5)), {"eval_share": 1}))


def test_a_long_system_turn_makes_no_near_duplicates(prepare):
    rows = [{**row, "system": sentence(7, 300)} for row in rows_of(range(30))]
    assert prepare((rows,)).report["sources"][0]["duplicates"] == {"exact": 0, "near": 0}


def test_near_duplicates_lie_on_one_side_of_the_split(prepare):
    rows = []
    for number in range(60):
        text = sentence(number, 60)
        rows += [{"text": text}, {"text": text + " and one more"}]
    data = prepare((rows,), eval_share=0.2)
    pairs = [{(number - 1) // 2 for number in row_numbers(part)} for part in (data.train, data.eval)]
    assert not pairs[0] & pairs[1] and len(data.eval) == 24
    assert data.report["sources"][0]["duplicates"] == {"exact": 0, "near": 60}
    assert data.report["leakage"]["near"]["count"] == 0


@pytest.mark.parametrize(("kind", "left"), [("off", 50), ("exact", 40), ("near", 30)])
def test_duplicates_are_dropped_where_asked(prepare, kind, left):
    texts = [sentence(number, 60) for number in range(30)]
    rows = [{"text": text} for text in texts + texts[:10] + [text + " and one more" for text in texts[10:20]]]
    data = prepare((rows,), eval_share=0, clean={"duplicates": kind})
    assert len(data.train) == left
    source = data.report["sources"][0]
    assert source["duplicates"] == {"exact": 10, "near": 10}
    assert source["read"] == source["kept"] + sum(entry["count"] for entry in source["dropped"].values())


def test_of_rows_in_both_the_domain_keeps_its_own(prepare):
    general, domain = (rows_of(range(20)), {"role": "general"}), (rows_of(range(10, 40)),)
    data = prepare(general, domain, eval_share=0, clean={"duplicates": "exact"})
    assert data.report["sources"][0]["kept"] == 10 and data.report["sources"][1]["kept"] == 30


def test_rows_longer_than_four_times_the_mean_are_dropped_where_asked(prepare):
    rows = [{"text": sentence(number, 10)} for number in range(30)] + [{"text": sentence(99, 100)}]
    data = prepare((rows,), eval_share=0, clean={"longer_than_mean": 4})
    # The mean is (30 * 10 + 100) / 31 = 12.9 words; the last row has 7.8 times that.
    assert len(data.train) == 30
    assert list(data.report["sources"][0]["dropped"]) == ["longer than 4 × the mean length"]


def test_classes_are_balanced_where_asked(prepare):
    rows = rows_of(range(40), kind="a") + rows_of(range(40, 50), kind="b")
    data = prepare((rows, {"balance_by": "kind"}), eval_share=0)
    numbers = row_numbers(data.train)
    assert sum(number <= 40 for number in numbers) == 10 and sum(number > 40 for number in numbers) == 10
    assert data.report["sources"][0]["dropped"]["cut to balance its class"]["count"] == 30


def test_a_shared_prompt_is_told(prepare, caplog):
    rows = [{"instruction": sentence(number // 2), "output": sentence(1000 + number, 40)} for number in range(40)]
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        data = prepare((rows,), eval_share=0.2)
    leaked = data.report["leakage"]
    assert leaked["exact"]["count"] == 0 and leaked["prompt"]["count"] > 0
    assert any("share their prompt" in record.message for record in caplog.records)
    pair = leaked["prompt"]["examples"][0]
    assert pair["eval"] in data.eval["row_id"] and pair["train"] in data.train["row_id"]


def test_too_alike_rows_are_split_all_the_same_and_told(prepare, caplog):
    common = sentence(1, 80)
    rows = [{"text": f"{common} {number}"} for number in range(50)]
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        data = prepare((rows,))
    assert len(data.eval) == 5 and data.report["leakage"]["near"]["count"] == 5
    assert any("cannot be kept on one side" in record.message for record in caplog.records)


def test_the_most_common_answer_is_found(prepare):
    rows = [{"instruction": sentence(number), "output": "yes" if number < 30 else "no"} for number in range(40)]
    common = prepare((rows,)).report["sources"][0]["most_common_answer"]
    assert common["share"] == 0.75 and common["row_id"].endswith("source0.jsonl:1")


def test_general_rows_repeat_evenly_where_asked(prepare):
    sources = ((rows_of(range(85)),), (rows_of(range(200, 210)), {"role": "general"}))
    data = prepare(*sources, eval_share=0, max_repeats=2)
    # 85 * 0.15 / 0.85 = 15 rows are called for; there are ten, so five of them are used twice.
    general = [row for row in data.train["row_id"] if "source1" in row]
    assert len(general) == 15 and sorted(map(general.count, set(general))) == [1] * 5 + [2] * 5
    assert data.report["sources"][1]["repeated"] == 5
    assert data.report["general_share"]["reached"] == pytest.approx(0.15)


def test_a_source_of_its_own_share(prepare):
    data = prepare((rows_of(range(40)), {"eval_share": 0.5}), (rows_of(range(100, 140)), {"eval_share": 0}))
    assert data.eval["source"].count("source0") == 20 == len(data.eval)


def test_wrong_shares_of_a_source_are_named(prepare):
    with pytest.raises(UserError, match="eval_share"):
        prepare((rows_of(range(4)), {"eval_share": 2}))
