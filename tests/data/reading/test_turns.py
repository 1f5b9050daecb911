from __future__ import annotations

import json

import pytest

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.formats import to_example
from hf_recipes.data.reading.readers import read_file
from hf_recipes.data.reading.turns import parse_turns

CALL = '{"name": "add", "arguments": {"a": 1}}'
ADD = {"name": "add", "arguments": {"a": 1}}
USER, ASSISTANT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def parsed(*turns):
    return parse_turns(list(turns), "messages")[0]


@pytest.mark.parametrize(
    ("role", "spoken"),
    [
        ("system", ["system", "developer", "System"]),
        ("user", ["user", "human", "prompter", "Human", " USER "]),
        ("assistant", ["assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot", "chatbot", "ai", "Assistant"]),
        ("tool", ["tool", "tool_response", "tool-response", "tool_result", "function", "function_response"]),
        ("tool", ["function-response", "observation", "observations", "ipython"]),
    ],
)
def test_all_role_names_in_use_are_known_in_both_spellings(role, spoken):
    for name in spoken:
        assert parsed({"from": name, "value": "x"}) == parsed({"role": name, "content": "x"}) == [turn(role, "x")]


@pytest.mark.parametrize("name", ["function_call", "tool_call", "function-call", "Tool Call"])
@pytest.mark.parametrize("value", [CALL, f"[{CALL}]", ADD, [ADD], {"function": ADD}])
def test_turns_that_are_calls_in_all_their_spellings(name, value):
    (message,) = parsed({"from": name, "value": value})
    assert (message["role"], message["content"]) == ("assistant", "")
    assert [call["function"] for call in message["tool_calls"]] == [ADD]


def test_sharegpt_function_calls_become_tool_calls_and_tool_turns():
    row = {
        "conversations": [
            {"from": "human", "value": "q"},
            {"from": "function_call", "value": CALL},
            {"from": "observation", "value": "2"},
            {"from": "gpt", "value": "two"},
        ],
        "tools": json.dumps([{"name": "add", "parameters": {}}]),
    }
    example = to_example(row, "sharegpt")
    assert [message["role"] for message in example.messages] == ["user", "assistant", "tool", "assistant"]
    (call,) = example.messages[1]["tool_calls"]
    assert call["function"] == ADD
    assert example.messages[2]["tool_call_id"] == call["id"] and len(call["id"]) == 9  # Mistral asks for nine
    assert example.messages[2]["name"] == "add"
    assert example.tools == [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    assert example.trained == [False, True, False, True]


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [('{"a": 1}', {"a": 1}), ({"a": None}, {"a": None}), ("", {}), (None, {}), ("{}", {})],
)
def test_openai_tool_calls_with_arguments_as_text_or_object(arguments, wanted):
    call = {"id": "abc", "type": "function", "function": {"name": "add", "arguments": arguments}}
    for calls in ([call], json.dumps([call]), [json.dumps(call)]):
        (message,) = parsed({"role": "assistant", "content": None, "tool_calls": calls})
        assert message["tool_calls"] == [{**call, "function": {"name": "add", "arguments": wanted}}]
        assert message["content"] == ""


def test_older_function_call_is_a_tool_call():
    messages = parsed(
        USER,
        {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": '{"a": 1}'}},
        {"role": "function", "name": "add", "content": "2"},
    )
    assert messages[1]["tool_calls"][0]["function"] == ADD
    assert messages[2] == turn("tool", "2", name="add", tool_call_id=messages[1]["tool_calls"][0]["id"])


def test_results_find_their_calls_by_id_else_in_order():
    def call(name, given_id=None):
        return {"function": {"name": name, "arguments": {}}, **({"id": given_id} if given_id else {})}

    messages = parsed(
        turn("assistant", None, tool_calls=[call("one", "i1"), call("two", "i2")]),
        turn("tool", "2", tool_call_id="i2"),
        turn("tool", "1"),
        turn("tool", "?", tool_call_id="i9"),
        turn("function_call", '{"name": "three", "arguments": {}}'),
        turn("function_call", '{"name": "four", "arguments": {}}'),
        turn("observation", "3"),
        turn("observation", "4"),
        turn("observation", "5"),
    )
    answered = [(message["content"], message.get("name")) for message in messages if message["role"] == "tool"]
    assert answered == [("2", "two"), ("1", "one"), ("?", None), ("3", "three"), ("4", "four"), ("5", None)]
    assert messages[2]["tool_call_id"] == "i1"


PART = {"type": "text", "text": "a"}


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ([PART, {"type": "text", "value": "b"}, "c"], {"content": "abc"}),
        ([{"type": "output_text", "text": "a"}], {"content": "a"}),
        ([{"type": "refusal", "refusal": "no"}], {"content": "no"}),
        ([{"type": "thinking", "thinking": "hm"}, PART], {"content": "a", "reasoning_content": "hm"}),
        ([{"type": "reasoning", "value": "h"}, {"type": "reasoning", "text": "m"}, PART], {"reasoning_content": "hm"}),
        ([{"type": "reasoning", "value": ""}, PART], {"reasoning_content": ""}),
    ],
)
def test_answers_in_typed_parts(content, wanted):
    (message,) = parsed(turn("assistant", content))
    assert wanted.items() <= message.items()
    assert parsed(turn("user", [{"type": "input_text", "text": "q"}, PART])) == [turn("user", "qa")]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "tool_call", "value": CALL},
        {"type": "tool_use", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "name": "add", "arguments": '{"a": 1}', "id": "abc"},
    ],
)
def test_calls_among_the_parts_of_an_answer(part):
    (message,) = parsed(turn("assistant", [{"type": "reasoning", "value": "hm"}, part, part]))
    assert [call["function"] for call in message["tool_calls"]] == [ADD, ADD]
    assert message["reasoning_content"] == "hm" and message["content"] == ""


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_beside_the_answer(key):
    assert parsed(turn("assistant", "a", **{key: "hm"})) == [turn("assistant", "a", reasoning_content="hm")]
    assert parsed(turn("assistant", [PART], **{key: [PART]})) == [turn("assistant", "a", reasoning_content="a")]
    with pytest.raises(BadRow, match="the content of a turn in 'messages' is an object"):
        parsed(turn("assistant", "a", **{key: {"summary": []}}))


def test_refusal_in_place_of_an_answer():
    assert parsed(turn("assistant", None, refusal="no")) == [turn("assistant", "no")]


@pytest.mark.parametrize("key", ["loss_weight", "weight", "train", "training", "loss", "loss_scale"])
def test_turn_of_weight_zero_is_not_trained(key):
    for zero, one in ((0, 1), (0.0, 1.0), (False, True)):
        turns = [USER, {**ASSISTANT, key: zero}, {**USER, key: zero}, {**ASSISTANT, key: one}, {**ASSISTANT, key: None}]
        assert parse_turns(turns, "messages")[1] == [False, False, False, True, True]
    for odd in (0.5, 2, "no", []):
        with pytest.raises(BadRow, match=f"'{key}' of a turn in 'messages' is neither 0 nor 1"):
            parsed(USER, {**ASSISTANT, key: odd})


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"content": "x"}, r"unknown role \(turn 1: None\)"),
        (turn("narrator", "x"), r"unknown role \(turn 1: 'narrator'\)"),
        (turn(["user"], "x"), "unknown role"),
        (turn("assistant", None), "is null, not text"),
        (turn("assistant", {"a": 1}), "is an object, not text"),
        (turn("user", [{"type": "image_url", "image_url": "x"}]), "part of type 'image_url'; only text"),
        (turn("user", [{"type": "reasoning", "value": "x"}]), "part of type 'reasoning'"),
        (turn("assistant", [{"type": "text"}]), "a text part .* holds null"),
        (turn("assistant", [{**PART, "train": False}]), "a part of a turn .* has a 'train' of its own"),
        (turn("function_call", "no json"), "not JSON with name and arguments"),
        (turn("function_call", "[]"), "not JSON with name and arguments"),
        (turn("function_call", '{"name": "add", "arguments": [1]}'), "arguments of a function call are not a JSON obj"),
        (turn("assistant", "", tool_calls=[{"function": {"arguments": "{}"}}]), "not JSON with name and arguments"),
        (turn("assistant", "", tool_calls=[{"function": {"name": "f", "arguments": "{"}}]), "not a JSON object"),
    ],
)
def test_d13_what_cannot_be_read_is_named_with_its_turn(bad, reason):
    with pytest.raises(BadRow, match=reason) as caught:
        parsed(USER, bad)
    assert "turn 1" in str(caught.value)


SCHEMA = {"name": "add", "parameters": {}}
WRAPPED = [{"type": "function", "function": SCHEMA}]


@pytest.mark.parametrize(
    "tools", [[SCHEMA], SCHEMA, WRAPPED, json.dumps([SCHEMA]), json.dumps(SCHEMA), [json.dumps(WRAPPED[0])]]
)
@pytest.mark.parametrize("key", ["tools", "functions"])
def test_tools_in_all_their_spellings_in_the_row_or_its_system_turn(tools, key):
    assert to_example({"messages": [USER, ASSISTANT], key: tools}, "messages").tools == WRAPPED
    example = to_example({"messages": [turn("system", "s", **{key: tools}), USER, ASSISTANT]}, "messages")
    assert example.tools == WRAPPED and example.messages[0] == turn("system", "s")
    example = to_example({"conversations": [turn("system", "", **{key: tools}), USER, ASSISTANT]}, "sharegpt")
    assert example.tools == WRAPPED and [message["role"] for message in example.messages] == ["user", "assistant"]
    assert example.trained == [False, True]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"tools": "no json"}, "field 'tools' is text that is not JSON"),
        ({"tools": [3]}, "field 'tools' is not a list of objects"),
        ({"tools": 3}, "field 'tools' is not a list of objects"),
        ({"tools": [SCHEMA], "functions": [SCHEMA]}, "more than one place"),
    ],
)
def test_d1_tools_that_are_no_schemas_are_named(row, reason):
    with pytest.raises(BadRow, match=reason):
        to_example({"messages": [USER, ASSISTANT], **row}, "messages")


@pytest.mark.parametrize("tools", ["", " ", "[]", [], None, {}])
def test_no_tools_are_none(tools):
    assert to_example({"messages": [USER, ASSISTANT], "tools": tools}, "messages").tools is None


def test_every_row_of_the_real_data_is_an_example(shared_data):
    for name, known in (
        ("alpaca_en_demo.json", "alpaca"),
        ("alpaca_zh_demo.json", "alpaca"),
        ("glaive_toolcall_en_demo.json", "sharegpt"),
        ("v1_sft_demo.jsonl", "messages"),
        ("c4_demo.jsonl", "text"),
    ):
        rows = [row for _, row in read_file(shared_data / name)]
        examples = [to_example(row, known) for row in rows]
        assert len(examples) == len(rows) >= 300
        if known == "sharegpt":
            assert sum(any("tool_calls" in message for message in example.messages) for example in examples) > 100
