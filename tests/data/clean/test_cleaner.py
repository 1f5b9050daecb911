from __future__ import annotations

import pickle

import pytest

from hf_recipes.core.errors import UserError
from hf_recipes.data.clean import optional
from hf_recipes.data.clean.cleaner import Cleaner, difference
from hf_recipes.data.clean.config import CleanConfig
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.formats import Example

ALL = CleanConfig.from_mapping(True)


def chat(*turns: tuple[str, str]) -> Example:
    messages = [{"role": role, "content": content} for role, content in turns]
    return Example(messages, [role == "assistant" for role, _ in turns])


def cleaner(rules, tokens=()) -> Cleaner:
    return Cleaner(CleanConfig.from_mapping(rules), tokens)


def test_a_clean_sample_comes_back_as_it_is():
    for sample in (chat(("user", "Hi"), ("assistant", "Hello 👋 a < b & `<br>`")), Example(text="plain\ntext")):
        cleaned = Cleaner(ALL).clean(sample)
        assert cleaned.example is sample and not cleaned.changes and not cleaned.notes


def test_every_kind_of_turn_is_cleaned_and_the_change_is_shown():
    sample = chat(
        ("system", "Be\x00 kind"), ("user", "<b>Hi</b>"), ("assistant", "Itâ€™s <i>ok</i>"), ("tool", "a\r\nb")
    )
    cleaned = Cleaner(ALL).clean(sample)
    assert [message["content"] for message in cleaned.example.messages] == ["Be kind", "Hi", "It’s ok", "a\nb"]
    assert cleaned.changes == {
        "html": "'<b>Hi</b>' → 'Hi'",
        "unicode": "'Itâ€™s ok' → 'It’s ok'",
        "control_characters": "1 × NUL",
    }
    assert sample.messages[0]["content"] == "Be\x00 kind"  # the given sample is not written to
    assert cleaned.example.trained == sample.trained


def test_function_calls_and_tools_are_never_touched():
    arguments = {"html": "<p>a</p>", "raw": "x\x00"}
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    tools = [{"type": "function", "function": {"name": "f", "description": "<b>x</b>"}}]
    sample = Example([{"role": "user", "content": "<b>go</b>"}, call], [False, True], tools)
    cleaned = Cleaner(ALL).clean(sample)
    assert cleaned.example.messages[1] is call and cleaned.example.tools is tools
    assert cleaned.example.messages[0]["content"] == "go"


def test_reasoning_is_cleaned_as_content_is():
    message = {"role": "assistant", "content": "yes", "reasoning_content": "a\x00b"}
    cleaned = cleaner(["control_characters"]).clean(Example([{"role": "user", "content": "q"}, message], [False, True]))
    assert cleaned.example.messages[1]["reasoning_content"] == "ab"


@pytest.mark.parametrize(
    "answer",
    ["<|im_end|> ends a turn", "<think>\nhm\n</think>\nyes", '<tool_call>\n{"name": "f"}\n</tool_call>', "<s>hi</s>"],
)
def test_chat_tokens_survive_all_rules(answer):
    assert Cleaner(ALL, ["<|im_end|>"]).clean(chat(("user", "q"), ("assistant", answer))).example.messages[1] == {
        "role": "assistant",
        "content": answer,
    }


def test_a_conversation_about_markup_is_left_alone_and_that_is_noted():
    page = "<!DOCTYPE html>\n<html><body><p>Hi</p></body></html>"
    for sample in (
        chat(("user", "Write an HTML page"), ("assistant", "<p>Hi</p>")),
        chat(("user", "Greet me"), ("assistant", page)),
    ):
        cleaned = cleaner(["html"]).clean(sample)
        assert cleaned.example is sample
        assert cleaned.notes == {"html: left alone": "the conversation is about markup"}
    assert not cleaner(["html"]).clean(chat(("user", "HTML & you"), ("assistant", "a < b"))).notes


@pytest.mark.parametrize(
    ("rules", "answer", "reason"),
    [
        (["empty"], "...", "an answer is empty"),
        (["html"], "<br/><br/>", "an answer is empty"),
        (["control_characters"], "\x00\u200b", "an answer is empty"),
        (["special_tokens_only"], "<|im_end|>", "an answer holds special tokens alone"),
        (["special_tokens_only"], "@@END@@", "an answer holds special tokens alone"),
        ({"max_chars": 10}, "eleven chars", "longer than 10 characters"),
        ({"personal_data": "drop"}, "write to jane@mail.org", "holds personal data"),
        (
            {"language": ["en"]},
            "Das Wetter war schön, also gingen wir zum Hafen und sahen den Schiffen eine Stunde lang zu.",
            "language is not en",
        ),
    ],
)
def test_rows_are_dropped_for_a_reason(rules, answer, reason):
    with pytest.raises(BadRow) as caught:
        cleaner(rules, ["@@END@@"]).clean(chat(("user", "q"), ("assistant", answer)))
    assert caught.value.reason == reason and caught.value.detail
    assert "jane" not in str(caught.value)
    assert cleaner(["unicode"]).clean(chat(("user", "q"), ("assistant", answer))).example.messages


def test_text_is_judged_as_text():
    with pytest.raises(BadRow, match="the text is empty"):
        cleaner(["empty"]).clean(Example(text=" --- "))
    assert cleaner(["html"]).clean(Example(text="<p>See our website</p>")).example.text == "See our website"


def test_a_call_without_words_is_no_empty_answer_but_an_empty_one_after_it_is():
    call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}
    turns = [{"role": "user", "content": "q"}, call]
    assert cleaner(["empty", "special_tokens_only"]).clean(Example(turns, [False, True])).example.messages == turns
    with pytest.raises(BadRow):
        cleaner(["empty"]).clean(Example([*turns, {"role": "assistant", "content": "!"}], [False, True, True]))


def test_an_answer_that_is_not_learned_may_be_a_dot():
    sample = chat(("user", "q"), ("assistant", "..."), ("user", "go on"), ("assistant", "yes"))
    example = Example(sample.messages, [False, False, False, True])
    assert cleaner(["empty"]).clean(example).example is example
    with pytest.raises(BadRow):
        cleaner(["empty"]).clean(sample)


def test_notes_name_kinds_and_languages_and_no_datum_whole():
    text = "The weather was fine, so we walked to the harbour and met jane@mail.org and joe@mail.org."
    cleaned = cleaner({"personal_data": "report", "language": "en"}).clean(Example(text=text))
    assert cleaned.example.text == text
    assert cleaned.notes == {
        "language: en": "",
        "personal_data: email": "email j***********g, email j**********g",
    }


def test_it_can_be_sent_to_another_process():
    config = CleanConfig.from_mapping({"html": True, "unicode": True, "language": ["en"], "personal_data": "report"})
    sent = pickle.loads(pickle.dumps(Cleaner(config, ["<|x|>"])))
    assert sent.clean(Example(text="<b>cafÃ©</b>")).example.text == "café"


@pytest.mark.parametrize(("rules", "library"), [("html", "selectolax"), ("unicode", "ftfy")])
def test_u2_a_missing_library_is_told_with_the_command(monkeypatch, rules, library):
    find = optional.importlib.util.find_spec
    monkeypatch.setattr(optional.importlib.util, "find_spec", lambda name: None if name == library else find(name))
    with pytest.raises(UserError, match=rf"clean\.{rules} needs {library}.*pip install 'hf-recipes\[clean\]'"):
        cleaner([rules])


def test_the_first_difference_is_shown():
    assert difference("a" * 50 + "b", "a" * 50 + "c") == "'aaaaaaaab' → 'aaaaaaaac'"
    assert difference("ab", "a") == "'ab' → 'a'"
