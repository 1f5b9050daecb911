from __future__ import annotations

import json

import pytest

from hf_recipes.core.files import json_safe
from hf_recipes.data.batching.packing import pack, sample_lengths
from hf_recipes.data.inspection.inspection import inspect_data
from hf_recipes.data.inspection.loader import LoaderSettings
from hf_recipes.data.inspection.round_trip import RoundTrip

PLACE = {"file": "orders.jsonl", "row": 4}
PAIRS = [(f"How many? {n}", f"{n} pens, please") for n in range(20)]


def verdicts(data, tokenizer, severity, **options):
    inspection = inspect_data(data, tokenizer, batches=1, **options)
    assert inspection.stops == any(verdict.severity == "stop" for verdict in inspection.verdicts)
    return [verdict.sentence for verdict in inspection.verdicts if verdict.severity == severity]


def the_one(sentences, *parts):
    (sentence,) = sentences
    assert all(part in sentence for part in parts), sentence
    assert ":" in sentence and sentence.endswith("."), "a finding says what to do"


def test_sound_data_has_nothing_to_stop_or_warn_of(varied, tokenizer):
    assert verdicts(varied, tokenizer, "stop") == verdicts(varied, tokenizer, "warn") == []


def test_no_learned_token_stops(prepare, tokenizer):
    data = prepare(PAIRS)
    data.train = data.train.map(lambda row: {"labels": [-100] * len(row["labels"])})
    data.report["train"]["supervised_tokens"] = 0
    assert any("No token is learned" in sentence for sentence in verdicts(data, tokenizer, "stop"))


def test_hardly_any_learned_token_stops(prepare, tokenizer):
    train = {"rows": 20, "tokens": 100_001, "supervised_tokens": 100, "length": {}}
    the_one(verdicts(prepare(PAIRS, train=train), tokenizer, "stop"), "Only 100 of 100001 tokens", "0.100%")


def test_d11_doubled_bos_stops(prepare, tokenizer):
    data = prepare(PAIRS)
    bos = tokenizer.bos_token_id  # the token with which every turn begins here
    data.train = data.train.map(
        lambda row, n: (
            {key: [bos if key == "input_ids" else -100, *row[key]] for key in ("input_ids", "labels")}
            if n == 5
            else row
        ),
        with_indices=True,
    )
    the_one(verdicts(data, tokenizer, "stop"), "1 samples begin with two BOS tokens", "orders.jsonl:5")


def test_d8_end_of_turn_never_learned_stops(prepare, tokenizer):
    data = prepare(PAIRS)
    data.train = data.train.map(lambda row: {"labels": [*row["labels"][:-1], -100]})
    the_one(verdicts(data, tokenizer, "stop"), "'<|im_end|>'", "no conversation of orders")


def test_d8_end_of_turn_seldom_not_learned_warns(prepare, tokenizer):
    data = prepare(PAIRS)
    data.train = data.train.map(
        lambda row, n: {"labels": [*row["labels"][:-1], -100]} if n < 3 else row, with_indices=True
    )
    the_one(verdicts(data, tokenizer, "warn"), "3 of 20 conversations")


@pytest.mark.parametrize(("lost", "severity"), [(21, "stop"), (20, "warn"), (3, "warn"), (2, None)])
def test_d2_dropped_rows(lost, severity, prepare, tokenizer):
    reasons = {"empty answer": {"count": lost - 1, "examples": [PLACE]}, "no answer": {"count": 1, "examples": [PLACE]}}
    data = prepare(PAIRS, source={"read": 40, "dropped": reasons})
    for each in ("stop", "warn"):
        found = verdicts(data, tokenizer, each)
        if each == severity:
            the_one(found, f"{lost} of 40 rows of orders", "empty answer", "orders.jsonl:4")
        else:
            assert found == []


@pytest.mark.parametrize(("kind", "severity"), [("exact", "stop"), ("near", "warn"), ("prompt", "note")])
def test_d4_leakage(kind, severity, prepare, tokenizer):
    leakage = {"exact": {"count": 0, "examples": []}, kind: {"count": 2, "examples": [{"eval": "e:1", "train": "t:2"}]}}
    found = verdicts(prepare(PAIRS, leakage=leakage), tokenizer, severity)
    the_one(found, "2 of 3 eval", "eval e:1, train t:2")


@pytest.mark.parametrize(("same", "severity"), [(100, "stop"), (99, "warn"), (51, "warn"), (50, None)])
def test_one_answer_for_nearly_all(same, severity, prepare, tokenizer):
    pairs = [(f"How many? {n}", "yes" if n < same else f"{n} pens") for n in range(100)]
    data = prepare(pairs)
    for each in ("stop", "warn"):
        found = verdicts(data, tokenizer, each)
        if each == severity:
            the_one(found, f"{same}.0%", "'yes<|im_end|>'")
        else:
            assert found == []


def test_few_conversations_are_not_judged_by_one_answer(prepare, tokenizer):
    assert verdicts(prepare([("a", "yes")] * 9), tokenizer, "stop") == []


def test_round_trip(varied, tokenizer):
    trip = RoundTrip("orders", rows=8, answers=8)
    trip.fail("orders.jsonl:3", "what is learned is not what the assistant says", "abc", "abd")
    the_one(verdicts(varied, tokenizer, "stop", round_trips=[trip]), "1 of 8 rows of orders", "orders.jsonl:3", "'abd'")
    trip = RoundTrip("orders", rows=8, answers=8, unknown=1, leading_space=4, altered=2)
    warnings = verdicts(varied, tokenizer, "warn", round_trips=[trip])
    assert [sentence.split(" of ")[0] for sentence in warnings] == ["1", "4"]
    assert "2 of 8 answers" in verdicts(varied, tokenizer, "note", round_trips=[trip])[0]


def test_d5_share_not_reached_warns(prepare, tokenizer):
    by = {"rows": 0.05, "tokens": 0.04, "supervised_tokens": 0.03}
    share = {"unit": "rows", "asked": 0.15, "reached": 0.05, "by": by}
    the_one(verdicts(prepare(PAIRS, general_share=share), tokenizer, "warn"), "0.0500 instead of 0.15")


def test_much_padding_warns_unless_something_is_done_about_it(prepare, tokenizer):
    data = prepare([(f"How many? {n}", f"{n}" + " pens" * (60 if n % 4 == 0 else 1)) for n in range(40)])
    the_one(verdicts(data, tokenizer, "warn"), "padding", "group_by_length")
    assert verdicts(data, tokenizer, "warn", loader=LoaderSettings(sampling="group_by_length")) == []
    bins = pack(sample_lengths(data.train), 512, seed=1)
    assert verdicts(data, tokenizer, "warn", bins=bins) == []


def test_personal_data_warns(prepare, tokenizer):
    noted = {
        "personal_data: email": {"count": 2, "examples": [{**PLACE, "detail": "a…@…"}]},
        "language: en": {"count": 20, "examples": [PLACE]},
    }
    the_one(verdicts(prepare(PAIRS, source={"notes": noted}), tokenizer, "warn"), "2 rows of orders with email")


def test_remarks(prepare, tokenizer):
    end = {"text": "<|im_end|>", "token_id": 2, "is_eos": False}
    held_out = {"rows": 0, "tokens": 0, "supervised_tokens": 0}
    pairs = [(f"How many? {n}", f'{{"pens": {n}}}') for n in range(20)]
    notes = verdicts(prepare(pairs, end_of_turn=end, eval=held_out), tokenizer, "note")
    assert [sum(part in note for note in notes) for part in ("eos_token", "100.0%", "held out")] == [1, 1, 1]


def test_everything_is_plain_data(varied, tokenizer):
    inspection = inspect_data(varied, tokenizer, batches=1000, round_trips=[RoundTrip("orders", 3, 3)])
    assert "An epoch has 5 batches, fewer than the 1000" in inspection.verdicts[-1].sentence  # 40 samples by eights
    values = json.loads(json.dumps(json_safe(inspection.as_dict()), allow_nan=False))
    assert values["stops"] is False
    assert values["report"] == varied.report
    assert len(values["batches"]) == 5
    assert values["tokens"]["first_tokens"][0]["count"] == inspection.tokens.first_tokens[0].count
