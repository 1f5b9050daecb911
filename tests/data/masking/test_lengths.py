from __future__ import annotations

import pytest
from chat_families import family_tokenizer
from conversations import conversation, encode, learned
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.lengths import fit_length
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.reading.formats import Example

TOKENIZER = family_tokenizer("chatml")
END = "<|im_end|>"


def fit(example, max_length, overlong="drop"):
    (fitted,) = fit_length(example, encode(TOKENIZER, example), Encoder(TOKENIZER), max_length, overlong)
    return fitted


def test_d10_answer_that_would_be_cut_is_dropped():
    example = conversation(["an answer"])
    needed = encode(TOKENIZER, example).answer_end
    assert learned(TOKENIZER, fit(example, needed)) == ["an answer" + END]
    with pytest.raises(BadRow, match="longer than max_length"):
        fit(example, needed - 1)


def test_d10_only_what_follows_the_answer_is_cut():
    example = conversation(["an answer"])
    fitted = fit(example, encode(TOKENIZER, example).answer_end)
    assert fitted.truncated  # the line break after the end of the turn
    assert TOKENIZER.decode(fitted.input_ids).endswith(END)


def test_d10_prompt_is_shortened_from_its_start_and_the_answer_stays_whole():
    words = " ".join(f"word{number}" for number in range(60))
    example = Example(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": words},
            {"role": "assistant", "content": "an answer"},
        ],
        [False, False, True],
    )
    fitted = fit(example, 60, "shorten_prompt")
    text = TOKENIZER.decode(fitted.input_ids)
    assert fitted.shortened and len(fitted.input_ids) <= 60
    assert learned(TOKENIZER, fitted) == ["an answer" + END]
    assert text.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert "word59<|im_end|>" in text and "word0" not in text


def test_d10_oldest_exchanges_go_before_the_question_is_cut():
    example = conversation([f"answer {number}" for number in range(6)], system="Be brief.")
    length = encode(TOKENIZER, example).answer_end
    fitted = fit(example, length - 10, "shorten_prompt")
    text = TOKENIZER.decode(fitted.input_ids)
    assert "Be brief." in text and "Question 0" not in text and "Question 1" in text
    assert learned(TOKENIZER, fitted) == [f"answer {number}{END}" for number in range(1, 6)]
    assert fitted.lost_answers == 1  # "answer 0", which was to be learned


def test_d10_a_question_may_go_altogether():
    example = conversation(["an answer"])
    bare = Example([{"role": "user", "content": ""}, *example.messages[1:]], example.trained)
    fitted = fit(example, encode(TOKENIZER, bare).answer_end, "shorten_prompt")
    assert learned(TOKENIZER, fitted) == ["an answer" + END] and "Question" not in TOKENIZER.decode(fitted.input_ids)


def test_d10_system_turn_goes_when_there_is_no_room_for_it():
    example = conversation(["an answer"], system="Be very brief and say nothing that nobody wants to know. " * 4)
    without = encode(TOKENIZER, conversation(["an answer"])).answer_end
    fitted = fit(example, without, "shorten_prompt")
    assert "brief" not in TOKENIZER.decode(fitted.input_ids)
    assert learned(TOKENIZER, fitted) == ["an answer" + END]


def test_d10_answer_that_alone_is_too_long_is_dropped():
    with pytest.raises(BadRow, match="the answer alone does not fit"):
        fit(conversation(["word " * 200]), 50, "shorten_prompt")


def test_d10_sample_without_a_learned_token_is_dropped():
    example = conversation(["an answer"])
    with pytest.raises(BadRow, match="no token to learn"):
        fit(Example(example.messages, [False, False]), None)


def test_plain_text_is_cut_and_counted():
    fitted = fit(Example(text="word " * 100), 20)
    assert fitted.truncated and len(fitted.input_ids) == 20 and fitted.labels.tolist() == fitted.input_ids.tolist()


@given(
    answers=st.lists(st.text("ab \n", min_size=1, max_size=40).filter(str.strip), min_size=1, max_size=3),
    max_length=st.integers(2, 120),
    overlong=st.sampled_from(["drop", "shorten_prompt"]),
)
@settings(max_examples=60, deadline=None)
def test_d10_what_is_kept_fits_and_ends_with_a_whole_last_answer(answers, max_length, overlong):
    try:
        fitted = fit(conversation(answers), max_length, overlong)
    except BadRow:
        return
    assert len(fitted.input_ids) <= max_length
    assert len(fitted.labels) == len(fitted.input_ids)
    # White space before an answer may be one token with the line break before it, which is not learned.
    assert learned(TOKENIZER, fitted)[-1].lstrip() == (answers[-1] + END).lstrip()
