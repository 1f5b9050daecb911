"""Overlong samples in parts: nothing learned is lost or doubled, all parts fit, every part learns something."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from chat_families import family_tokenizer
from conversations import conversation, encode, learned
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.lengths import fit_length
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.masking.parts import split_text
from hf_recipes.data.reading.formats import Example

TOKENIZER = family_tokenizer("chatml")
END = "<|im_end|>"
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"


def split(example, max_length, **options):
    encoder = Encoder(TOKENIZER, **options)
    (encoded,) = encoder.encode([example])
    return fit_length(example, encoded, encoder, max_length, "split")


def texts(parts):
    return [TOKENIZER.decode(part.input_ids) for part in parts]


def test_d10_conversation_is_split_between_exchanges_each_part_behind_the_system_turn():
    example = conversation([f"answer {number}" for number in range(5)], system="Be brief.")
    two = encode(TOKENIZER, conversation(["answer 0", "answer 1"], system="Be brief.")).answer_end
    parts = split(example, two)
    assert [learned(TOKENIZER, part) for part in parts] == [
        ["answer 0" + END, "answer 1" + END],
        ["answer 2" + END, "answer 3" + END],
        ["answer 4" + END],
    ]
    assert all(text.startswith(SYSTEM + "<|im_start|>user\nQuestion") for text in texts(parts))
    assert not any(part.lost_answers or part.shortened or part.truncated for part in parts)


def test_d10_tools_are_repeated_with_the_system_turn():
    tools = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {}}}]
    example = conversation(["one", "two"])
    example = Example(example.messages, example.trained, tools)
    parts = split(example, encode(TOKENIZER, example).answer_end - 1)
    assert len(parts) == 2 and all('"get_weather"' in text for text in texts(parts))


def test_d10_answer_that_fits_nowhere_is_counted_and_the_others_are_kept():
    example = conversation(["one", "word " * 200, "three"])
    parts = split(example, 50)
    assert [learned(TOKENIZER, part) for part in parts] == [["one" + END], ["three" + END]]
    assert [part.lost_answers for part in parts] == [1, 0]


def test_d10_row_of_which_no_answer_fits_is_dropped():
    with pytest.raises(BadRow, match="longer than max_length 50"):
        split(conversation(["word " * 200, "word " * 300]), 50)


def test_d10_exchange_that_does_not_fit_is_kept_up_to_its_last_answer_that_does():
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": "I will look."},
        {"role": "tool", "content": "cloud " * 100},
        {"role": "assistant", "content": "Cloudy."},
        {"role": "user", "content": "Thanks"},
        {"role": "assistant", "content": "Bye."},
    ]
    example = Example(messages, [message["role"] == "assistant" for message in messages])
    parts = split(example, 60)
    assert [learned(TOKENIZER, part) for part in parts] == [["I will look." + END], ["Bye." + END]]
    assert [part.lost_answers for part in parts] == [1, 0]


def test_consecutive_questions_stay_together():
    messages = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "answer 1"}]
    messages += [{"role": "user", "content": text} for text in ("Two", "Three")]
    messages.append({"role": "assistant", "content": "answer 2"})
    example = Example(messages, [message["role"] == "assistant" for message in messages])
    _, part = split(example, encode(TOKENIZER, example).answer_end - 1)
    assert "Two" in TOKENIZER.decode(part.input_ids) and "Three" in TOKENIZER.decode(part.input_ids)


def test_turns_that_are_not_learned_are_context_as_far_as_there_is_room():
    example = conversation([f"answer {number}" for number in range(6)])
    last_two = encode(TOKENIZER, conversation(["answer 4", "answer 5"])).answer_end
    (part,) = split(example, last_two, mask_history=True)
    assert learned(TOKENIZER, part) == ["answer 5" + END]
    assert "answer 4" in TOKENIZER.decode(part.input_ids) and "answer 3" not in TOKENIZER.decode(part.input_ids)
    assert part.shortened


answers = st.lists(st.text("ab \n", min_size=1, max_size=60).filter(str.strip), min_size=1, max_size=6)


@given(answers=answers, trained=st.lists(st.booleans(), min_size=6, max_size=6), max_length=st.integers(3, 150))
@settings(max_examples=80, deadline=None)
def test_d10_no_answer_is_lost_doubled_or_cut(answers, trained, max_length):
    """Each answer is told apart by its number, so every one can be followed into its part."""
    answers = [f"{number} {answer}" for number, answer in enumerate(answers)]
    example = conversation(answers, system="Be brief.")
    questions = [message for message in example.messages if message["role"] == "user"]
    flags = [flag for index, flag in zip(range(len(answers)), trained, strict=False)]
    example = Example(example.messages, [False, *(bit for flag in flags for bit in (False, flag))])
    to_learn = [answer + END for answer, flag in zip(answers, flags, strict=True) if flag]
    # An answer is kept exactly when its exchange fits behind the system turn.
    alone = [conversation([answer], system="Be brief.") for answer in answers]
    alone = [replace(a, messages=[a.messages[0], q, a.messages[2]]) for a, q in zip(alone, questions, strict=True)]
    fits = [encode(TOKENIZER, exchange).answer_end <= max_length for exchange in alone]
    to_keep = [answer + END for answer, flag, fit in zip(answers, flags, fits, strict=True) if flag and fit]
    try:
        parts = split(example, max_length)
    except BadRow:
        assert not to_keep
        return
    kept = [span for part in parts for span in learned(TOKENIZER, part)]
    assert kept == to_keep
    assert len(kept) + sum(part.lost_answers for part in parts) == len(to_learn)
    for part in parts:
        assert len(part.input_ids) == len(part.labels) <= max_length
        assert (part.labels[1:] != IGNORED_LABEL).any()


@given(words=st.integers(1, 80), max_length=st.integers(3, 30))
@settings(max_examples=80, deadline=None)
def test_text_is_split_without_loss_and_ends_with_eos(words, max_length):
    example = Example(text="word " * words)
    whole = encode(TOKENIZER, example)
    parts = split(example, max_length)
    assert np.concatenate([part.input_ids for part in parts]).tolist() == whole.input_ids.tolist()
    assert np.concatenate([part.labels for part in parts]).tolist() == whole.labels.tolist()
    assert parts[-1].input_ids[-1] == TOKENIZER.eos_token_id
    assert all(2 <= len(part.input_ids) <= max_length for part in parts)
    assert all(len(part.input_ids) >= max_length - 1 for part in parts[:-1])


def test_last_piece_of_a_text_is_never_one_token():
    whole = encode(TOKENIZER, Example(text="x y"))
    ids = np.arange(7, dtype=np.int32)
    pieces = split_text(type(whole)(ids, ids.copy(), 7), 3)
    assert [piece.input_ids.tolist() for piece in pieces] == [[0, 1, 2], [3, 4], [5, 6]]
