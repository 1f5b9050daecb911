from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.formats import CONVERTERS, REQUIRED, detect_format, to_example

USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def brief(example):
    return [(message["role"], message["content"]) for message in example.messages]


@pytest.mark.parametrize(
    ("row", "name", "turns"),
    [
        ({"instruction": "i", "input": "", "output": "o"}, "alpaca", [("user", "i"), ("assistant", "o")]),
        (
            {"instruction": "i", "input": "x", "output": "o", "system": "s", "history": [["h", "r"]]},
            "alpaca",
            [("system", "s"), ("user", "h"), ("assistant", "r"), ("user", "i\n\nx"), ("assistant", "o")],
        ),
        ({"prompt": "p", "completion": "c"}, "prompt_completion", [("user", "p"), ("assistant", "c")]),
        ({"prompt": [USER], "completion": [ASSISTANT]}, "prompt_completion", [("user", "q"), ("assistant", "a")]),
        (
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": [{"type": "text", "value": "a"}, {"type": "text", "text": "b"}]},
                ]
            },
            "messages",
            [("user", "q"), ("assistant", "ab")],
        ),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": "s"},
            "sharegpt",
            [("system", "s"), ("user", "q"), ("assistant", "a")],
        ),
        ({"conversations": [USER, ASSISTANT]}, "sharegpt", [("user", "q"), ("assistant", "a")]),
        ({"conversation": [USER, ASSISTANT]}, "sharegpt", [("user", "q"), ("assistant", "a")]),
        ({"instruction": " \n", "input": "x", "output": "o"}, "alpaca", [("user", "x"), ("assistant", "o")]),
        (
            {"messages": [USER, ASSISTANT], "system": "s"},
            "messages",
            [("system", "s"), ("user", "q"), ("assistant", "a")],
        ),
        (
            {"prompt": "p", "completion": [ASSISTANT], "system": "s"},
            "prompt_completion",
            [("system", "s"), ("user", "p"), ("assistant", "a")],
        ),
    ],
)
def test_formats_are_detected_and_brought_into_one_form(row, name, turns):
    assert detect_format([row], "x") == name
    assert brief(to_example(row, name)) == turns


def test_text_stays_text():
    assert detect_format([{"text": "t"}], "x") == "text"
    assert to_example({"text": "t"}, "text").text == "t"


@pytest.mark.parametrize("field", ["instruction", "input", "output", "system"])
@pytest.mark.parametrize(
    ("value", "kind"), [({}, "an object"), ([], "a list"), (3, "a number"), (True, "a truth value")]
)
def test_d1_odd_type_names_the_field(field, value, kind):
    with pytest.raises(BadRow, match=f"field '{field}' is {kind}, not text"):
        to_example({"instruction": "i", "output": "o", field: value}, "alpaca")


def test_d1_null_names_the_field():
    with pytest.raises(BadRow, match="field 'output' is null, not text"):
        to_example({"instruction": "i", "output": None}, "alpaca")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["role", "content", "from", "value", "type", "text", "tool_calls", "function", "name", "weight"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
KEYS = sorted({key for keys in REQUIRED.values() for key in keys} | {"input", "system", "history", "tools"})


@given(st.sampled_from(sorted(CONVERTERS)), st.dictionaries(st.sampled_from(KEYS), JSON))
def test_d1_any_json_row_is_an_example_or_a_named_fault(name, row):
    try:
        example = to_example(row, name)
    except BadRow as fault:
        assert fault.reason
        return
    assert example.text is not None or len(example.messages) == len(example.trained)
    assert all(isinstance(message["content"], str) for message in example.messages)


def test_d3_unknown_format_shows_the_keys_and_the_formats():
    with pytest.raises(UserError) as caught:
        detect_format([{"question": "a", "answer": "b"}], "data.json")
    for part in ("data.json", "question, answer", "alpaca (instruction, output)", "messages", "columns"):
        assert part in str(caught.value)


def test_d3_asked_format_that_does_not_fit_names_the_one_that_does():
    row = {"conversations": []}
    with pytest.raises(UserError, match=r"is not of format alpaca: its first row has the keys conversations.*sharegpt"):
        detect_format([row], "x", "alpaca")
    assert detect_format([row], "x", "sharegpt") == "sharegpt"


@pytest.mark.parametrize(
    ("row", "hint"),
    [
        (
            {"question": "q", "answer": "a"},
            r"rename with columns beside its path: columns: {instruction: question, output: answer}\.",
        ),
        (
            {"query": "q", "response": "a", "id": 1},
            r"rename with columns beside its path: columns: {instruction: query, output: response}\.",
        ),
        ({"prompt": "q", "response": "a"}, r"for prompt_completion add columns: {completion: response}\."),
        ({"instruction": "q", "answer": "a"}, r"for alpaca add columns: {output: answer}\."),
        ({"dialogue": []}, r"rename with columns beside its path: columns: {messages: dialogue}\."),
        ({"content": "x = 1", "path": "a.py"}, r"rename with columns beside its path: columns: {text: content}\."),
        ({"a": "b"}, r"rename with columns beside its path, e\.g\. columns: {instruction: question}\."),
    ],
)
def test_d3_unknown_names_are_answered_with_the_renaming_to_write(row, hint):
    with pytest.raises(UserError, match=hint):
        detect_format([row], "x")


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        ({"prompt": "p", "chosen": "a", "rejected": "b"}, "completion: chosen"),
        ({"chosen": [USER, ASSISTANT], "rejected": []}, "messages: chosen"),
        ({"conversations": [USER], "chosen": ASSISTANT, "rejected": ASSISTANT}, "completion: chosen"),
    ],
)
def test_preferences_are_not_taken_for_answers_to_learn(row, columns):
    with pytest.raises(UserError, match=rf"holds preferences \(chosen, rejected\).*columns: {{{columns}}}"):
        detect_format([row], "x")


@pytest.mark.parametrize("key", ["label", "kto_tag"])
def test_unwanted_answers_are_not_learned_unless_asked(key):
    rows = [{"prompt": "p", "completion": "c", key: number % 2 == 0} for number in range(4)]
    with pytest.raises(UserError, match=f"marks wanted and unwanted answers with '{key}'"):
        detect_format(rows, "x")
    assert detect_format(rows, "x", "prompt_completion") == "prompt_completion"
    assert detect_format([{"text": "t", "label": 3}], "x") == "text"


@pytest.mark.parametrize("key", ["images", "videos", "audios"])
def test_rows_with_pictures_or_sound_are_named(key):
    with pytest.raises(BadRow, match=f"field '{key}' is not empty; only text"):
        to_example({"messages": [USER, ASSISTANT], key: ["a.jpg"]}, "messages")
    assert to_example({"messages": [USER, ASSISTANT], key: []}, "messages").messages


def test_history_is_learned_and_tools_reach_an_alpaca_row():
    row = {"instruction": "i", "output": "o", "history": [["h", "r"]], "tools": '[{"name": "add"}]'}
    example = to_example(row, "alpaca")
    assert example.trained == [False, True, False, True]
    assert example.tools == [{"type": "function", "function": {"name": "add"}}]


def test_d3_one_odd_first_row_does_not_decide():
    assert detect_format([{"note": 1}, {"messages": []}, {"messages": []}], "x") == "messages"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([USER], "no assistant turn"),
        ([USER, {"role": "assistant", "content": " \n"}], "an assistant turn is empty"),
        ([{"role": "system", "content": "s"}] * 2 + [USER, ASSISTANT], "more than one system turn"),
        ([USER, {"role": "system", "content": "s"}, ASSISTANT], "the system turn is not the first"),
        (
            [{"role": "system", "content": "s"}, USER, {"role": "system", "content": "t"}, ASSISTANT],
            "more than one sys",
        ),
        ([USER, {"role": "narrator", "content": "n"}, ASSISTANT], "unknown role"),
        ([USER, {"role": "assistant", "content": [{"type": "image"}]}], "only text is known"),
        ([USER, {"role": "function_call", "content": "no json"}], "not JSON with name and arguments"),
        ([USER, {**ASSISTANT, "weight": 0.5}], "neither 0 nor 1"),
        ([USER, "hello"], "is str, not an object"),
    ],
)
def test_d13_unsupported_turns_are_named(messages, reason):
    with pytest.raises(BadRow, match=reason):
        to_example({"messages": messages}, "messages")


def test_d13_consecutive_user_turns_stay_in_their_order():
    second = {"role": "user", "content": "and?"}
    example = to_example({"messages": [USER, second, ASSISTANT, second]}, "messages")
    assert brief(example) == [("user", "q"), ("user", "and?"), ("assistant", "a"), ("user", "and?")]
