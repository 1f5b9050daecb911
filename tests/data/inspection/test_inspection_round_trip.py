from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from chat_families import FAMILIES, family_tokenizer

from hf_recipes.data.inspection.round_trip import first_examples, round_trip
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.reading.formats import Example

ANSWERS = ["Sure, here it is:\nreturn x + 1", " 4", "naïve 日本語 ✓"]


def conversation(answers, trained=None):
    messages = [
        {"role": role, "content": text}
        for number, answer in enumerate(answers)
        for role, text in (("user", f"Question {number}"), ("assistant", answer))
    ]
    return Example(messages, trained or [message["role"] == "assistant" for message in messages])


def trip(tokenizer, *examples, **options):
    named = [(f"f.json:{number}", example) for number, example in enumerate(examples)]
    return round_trip("f", named, Encoder(tokenizer, **options))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_d11_rows_come_back_from_every_family_s_tokens(name):
    result = trip(family_tokenizer(name), conversation(ANSWERS), conversation(ANSWERS[:1]))
    assert (result.rows, result.answers, result.failed, result.unknown) == (2, 4, 0, 0), result.examples
    assert result.leading_space == 1


def test_trimmed_answers_and_dropped_reasoning_count_as_altered():
    assert trip(family_tokenizer("llama3"), conversation([" 4"])).altered == 1
    reasoned = conversation(["<think>\nhm\n</think>\n\nfirst", "<think>\nwell\n</think>\n\nsecond"])
    result = trip(family_tokenizer("qwen3"), reasoned)
    assert (result.failed, result.altered) == (0, 1)


def test_last_answer_only_and_turns_of_weight_zero():
    tokenizer = family_tokenizer("chatml")
    assert trip(tokenizer, conversation(ANSWERS), mask_history=True).answers == 1
    assert trip(tokenizer, conversation(ANSWERS, [False, True, False, False, False, True])).answers == 2
    assert trip(tokenizer, conversation(ANSWERS), assistant_only_loss=False).failed == 0


def test_plain_text_comes_back():
    text = Example([], [], text="Two  spaces,\n\n日本語")
    result = trip(family_tokenizer("chatml"), text)
    assert (result.rows, result.failed, result.altered) == (1, 0, 0)


class Broken(Encoder):
    """An encoder with one fault after another."""

    def __init__(self, tokenizer, fault):
        super().__init__(tokenizer)
        self._fault = fault

    def encode(self, examples):
        return [self._fault(encoded) for encoded in super().encode(examples)]


def shifted(encoded):
    """Labels one token too far to the left, as masks made by counting tokens have had them."""
    learned = np.append(encoded.labels[1:] != -100, False)
    return replace(encoded, labels=np.where(learned, encoded.input_ids, -100))


def without_end(encoded):
    labels = encoded.labels.copy()
    labels[(labels != -100).nonzero()[0][-1]] = -100
    return replace(encoded, labels=labels)


def lost_token(encoded):
    return replace(encoded, input_ids=encoded.input_ids[3:], labels=encoded.labels[3:])


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (shifted, "without its end"),
        (without_end, "without its end"),
        (lost_token, "do not decode to the template's rendering"),
    ],
)
def test_d9_faulty_encoding_fails(fault, what):
    result = round_trip(
        "f", [("f.json:0", conversation(["The capital is Paris."]))], Broken(family_tokenizer("chatml"), fault)
    )
    assert result.failed == 1
    assert what in result.examples[0]["what"]
    assert result.examples[0]["row_id"] == "f.json:0"


def test_d9_label_of_another_answer_fails():
    tokenizer = family_tokenizer("chatml")
    other = Encoder(tokenizer).encode([conversation(["x = 2"])])[0]
    result = round_trip("f", [("f.json:0", conversation(["x = 1"]))], Broken(tokenizer, lambda _: other))
    assert result.failed == 1


def test_text_without_tokens_is_told_apart():
    tokenizer = family_tokenizer("llama2", metaspace=True)
    tokenizer.unk_token = "<unk>"
    result = trip(tokenizer, conversation(["Hello €"]))
    assert (result.unknown, result.failed) == (1, 0)


def test_first_usable_rows_of_every_source(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [{"instruction": f"Say {n}", "output": f"{n}" if n else 5} for n in range(10)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    ((label, examples),) = first_examples([{"path": str(path)}], rows=4)
    assert label == "rows"
    assert [row_id.rsplit(":", 1)[1] for row_id, _ in examples] == ["2", "3", "4", "5"]  # line 1 has a number to say
