from __future__ import annotations

import itertools
import json
import logging
from collections import Counter

import pytest
from torch.utils.data import DataLoader

from hf_recipes.core.errors import UserError
from hf_recipes.data.batching.collate import SupervisedCollator
from hf_recipes.data.clean.config import CleanConfig
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.mixing.streaming import stream_data


@pytest.fixture(scope="module")
def encoder(tokenizer):
    return Encoder(tokenizer)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """a.jsonl and b.jsonl of the domain with 300 and 100 rows, general.jsonl with 200."""
    directory = tmp_path_factory.mktemp("streamed")
    for name, count in (("a", 300), ("b", 100), ("general", 200)):
        write(directory / f"{name}.jsonl", [row(name, number) for number in range(count)])
    return directory


def row(name, number, **more):
    return {"prompt": f"{name} {number}", "completion": "yes" * (1 + number % 4), **more}


def write(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def specs(directory):
    return [
        {"path": str(directory / "a.jsonl")},
        {"path": str(directory / "b.jsonl")},
        {"path": str(directory / "general.jsonl"), "role": "general"},
    ]


def streamed(directory, encoder, sources=None, buffer_size=30, eval_rows=512, **settings):
    settings = {"eval_share": 0.1, "general_share": 0.2, **settings}
    sources = sources or specs(directory)
    return stream_data(sources, encoder.tokenizer, buffer_size=buffer_size, eval_rows=eval_rows, **settings)


def places(rows):
    return [row["row_id"].rpartition("/")[2] for row in rows]


def text_of(row, encoder):
    return encoder.tokenizer.decode(row["input_ids"])


def test_d7_streamed_sources_are_mixed_by_their_shares_in_another_order_every_epoch(directory, encoder):
    data = streamed(directory, encoder)
    rows = list(data.train)
    sources = [row["source"] for row in rows]
    for end in range(1, len(rows) + 1):
        assert abs(sources[:end].count("general") - 0.2 * end) <= 0.5 + 1e-9
    # The domain's files, 3 : 1 in size, are spread over the whole stream.
    parts = [Counter(sources[start : start + 50]) for start in range(0, len(rows) - 50, 50)]
    assert all(abs(part["a"] - 30) <= 3 and abs(part["b"] - 10) <= 3 for part in parts)
    first = places(rows)
    assert len(set(first)) == len(first)
    assert places(data.train) == first
    data.train.set_epoch(1)
    second = places(data.train)
    assert second != first
    assert {place for place in second if "general" not in place} == {place for place in first if "general" not in place}
    assert places(streamed(directory, encoder, seed=43).train) != first


def test_files_of_a_source_come_in_another_order_every_epoch(tmp_path, encoder):
    for name in "abcde":
        write(tmp_path / f"{name}.jsonl", [row(name, number) for number in range(20)])
    train = streamed(tmp_path, encoder, [{"path": str(tmp_path)}], buffer_size=1).train
    orders = set()
    for epoch in range(4):
        train.set_epoch(epoch)
        orders.add(tuple(dict.fromkeys(place[0] for place in places(train))))
    assert len(orders) > 1
    assert all(sorted(order) == list("abcde") for order in orders)


def test_samples_are_those_of_the_encoder_and_collate(directory, encoder):
    rows = list(itertools.islice(streamed(directory, encoder).train, 8))
    for sample in rows:
        learned = sample["input_ids"][sample["labels"] != -100]
        assert encoder.tokenizer.decode(learned).startswith("yes")
        assert text_of(sample, encoder).startswith("<|im_start|>user")
    collator = SupervisedCollator(encoder.tokenizer.pad_token_id)
    batch = next(iter(DataLoader(streamed(directory, encoder).train, batch_size=8, collate_fn=collator)))
    assert batch["input_ids"].shape[0] == 8 and batch["input_ids"].shape[1] % 8 == 0


def test_d4_held_out_rows_are_never_trained_on_and_copies_lie_on_one_side(tmp_path, encoder):
    write(tmp_path / "a.jsonl", [row("a", number % 150) for number in range(300)])  # every row twice
    write(
        tmp_path / "general.jsonl", [row("a", number) for number in range(150)]
    )  # and once more, all of it trained on
    sources = [
        {"path": str(tmp_path / "a.jsonl")},
        {"path": str(tmp_path / "general.jsonl"), "role": "general", "eval_share": 0},
    ]
    data = streamed(tmp_path, encoder, sources, general_share=0.3)
    trained = {text_of(row, encoder) for row in data.train}
    evaluated = Counter(text_of(row, encoder) for row in data.eval)
    assert evaluated and not trained & set(evaluated)
    assert set(evaluated.values()) == {2}
    first, second = data.report["sources"]
    assert first["held_out"] == first["eval"] == len(data.eval)
    assert second["held_out"] == second["eval"] == 0
    # The general source has the held-out rows too: dropped there, and counted with their place.
    dropped = second["dropped"]["stands in the eval set too"]
    assert dropped["count"] == len(evaluated)
    assert dropped["examples"][0]["file"].endswith("general.jsonl")
    assert second["read"] == second["kept"] + dropped["count"]


def test_d4_groups_lie_on_one_side(tmp_path, encoder):
    write(tmp_path / "a.jsonl", [row("a", number, user=number // 10) for number in range(400)])
    sources = [{"path": str(tmp_path / "a.jsonl"), "group_by": "user"}]
    data = streamed(tmp_path, encoder, sources, eval_share=0.3)
    users = [{(int(place.rpartition(":")[2]) - 1) // 10 for place in places(rows)} for rows in (data.train, data.eval)]
    assert users[0] | users[1] == set(range(40))
    assert not users[0] & users[1]
    assert 3 <= len(users[1]) <= 21  # 12 of 40 expected, three standard deviations of 2.9


def test_d6_the_eval_set_is_separate_from_the_shares_and_of_the_size_asked(directory, encoder):
    data = streamed(directory, encoder, eval_share=0.3, eval_rows=30)
    assert Counter(data.eval["source"]) == {"a": 10, "b": 10, "general": 10}
    # Rows held out beyond those are not trained on either.
    list(data.train)
    assert all(source["held_out"] > 10 for source in data.report["sources"])


def test_d6_a_given_eval_set_is_used_whole_and_the_rest_trained_on(directory, encoder):
    a, b, general = specs(directory)
    data = streamed(directory, encoder, [a, {**b, "eval_share": 1}, {**general, "eval_share": 0}], eval_rows=7)
    assert Counter(data.eval["source"]) == {"b": 100}
    rows = list(data.train)
    assert Counter(row["source"] for row in rows) == {"a": 300, "general": 75}  # 300 · 0.2 / 0.8
    assert data.report["sources"][1]["given_eval"] and data.report["sources"][1]["read"] == 100


def test_d2_what_became_of_every_row_is_counted_while_it_is_read(tmp_path, encoder):
    good = [row("a", number) for number in range(100)]
    write(tmp_path / "a.jsonl", [*good[:50], {"prompt": 5, "completion": "x"}, *good[50:], row("a", 0, completion="")])
    write(tmp_path / "general.jsonl", [row("general", number) for number in range(100)])
    sources = [{"path": str(tmp_path / "a.jsonl")}, {"path": str(tmp_path / "general.jsonl"), "role": "general"}]
    data = streamed(tmp_path, encoder, sources, eval_share=0)
    assert data.report["train"]["rows"] == 0
    rows = list(data.train)
    report = data.report
    source = report["sources"][0]
    assert source["read"] == 102 and source["kept"] == source["train"] == 100
    assert sum(reason["count"] for reason in source["dropped"].values()) == 2
    assert {place["row"] for reason in source["dropped"].values() for place in reason["examples"]} == {51, 102}
    # 100 domain rows at 0.2 call for 25 general ones.
    assert report["train"]["rows"] == len(rows) == 125
    assert report["general_share"]["reached"] == 0.2
    general = [row for row in rows if row["source"] == "general"]
    tokens = sum(len(row["input_ids"]) for row in general) / sum(len(row["input_ids"]) for row in rows)
    assert report["general_share"]["by"]["tokens"] == tokens
    assert report["train"]["supervised_tokens"] == sum((row["labels"] != -100).sum() for row in rows)


@pytest.mark.parametrize(
    ("read", "buffer_size", "epoch", "unit"),
    [(0, 30, 0, "rows"), (1, 1, 0, "rows"), (123, 30, 1, "tokens"), (400, 50, 0, "rows")],
)
def test_a_resumed_stream_goes_on_with_the_same_rows_and_counts(directory, encoder, read, buffer_size, epoch, unit):
    def make():
        data = streamed(directory, encoder, buffer_size=buffer_size, share_unit=unit)
        data.train.set_epoch(epoch)
        return data

    whole, begun, resumed = make(), make(), make()
    expected = places(whole.train)
    first = places(itertools.islice(begun.train, read))
    resumed.train.load_state_dict(begun.train.state_dict())
    assert first + places(resumed.train) == expected
    assert resumed.report == whole.report


def test_a_stream_is_read_no_further_than_its_windows(tmp_path, encoder):
    write(tmp_path / "a.jsonl", [row("a", number) for number in range(5000)])
    data = streamed(tmp_path, encoder, [{"path": str(tmp_path / "a.jsonl")}], buffer_size=100)
    next(iter(data.train))
    assert data.report["sources"][0]["read"] <= 512  # one block


def test_general_rows_repeat_only_when_asked(directory, encoder, caplog):
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        once = list(streamed(directory, encoder, eval_share=0, general_share=0.5).train)
    assert len(once) == 600
    assert "general_share 0.5 is not reached: with every general row used once the share is 0.3333" in caplog.text
    data = streamed(directory, encoder, eval_share=0, general_share=0.5, max_repeats=2)
    uses = Counter(places(row for row in data.train if row["source"] == "general"))
    assert len(uses) == 200 and set(uses.values()) == {2}


def test_rules_that_need_all_rows_are_told_not_to_be_applied(directory, encoder, caplog):
    a, b, general = specs(directory)
    with caplog.at_level(logging.WARNING, logger="hf_recipes"):
        streamed(
            directory, encoder, [a, {**b, "stratify_by": "prompt"}, general], clean=CleanConfig(duplicates="exact")
        )
    assert "streaming: clean.duplicates, stratify_by not applied" in caplog.text


def test_what_cannot_be_streamed_is_told(tmp_path, directory, encoder):
    with pytest.raises(UserError, match="all are given eval sets"):
        streamed(directory, encoder, [{"path": str(directory / "a.jsonl"), "eval_share": 1}])
    with pytest.raises(UserError, match=r"All 300 rows of '.*a.jsonl' were dropped: 300 × longer than max_length 4"):
        list(streamed(directory, encoder, [{"path": str(directory / "a.jsonl")}], max_length=4).train)
    write(tmp_path / "bad.jsonl", [row("a", 1), {"prompt": 1, "completion": "x"}])
    with pytest.raises(UserError, match=r"bad.jsonl, line 2: .* set bad_rows: drop"):
        list(streamed(tmp_path, encoder, [{"path": str(tmp_path / "bad.jsonl")}], bad_rows="fail", eval_share=0).train)
