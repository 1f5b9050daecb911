"""Turns of a conversation as people write them → messages with role, content and, where present, function calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hf_recipes.data.ledger import BadRow

Message = dict[str, Any]  # role, content (text); where present also tool_calls, tool_call_id, name, reasoning_content

ROLES: dict[str, str] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "model", "chatgpt", "bard", "bot", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("tool", "observation", "function", "function_response", "ipython"), "tool"),
}
CALL_ROLES = ("function_call", "tool_call")
WEIGHT_KEYS = ("loss_weight", "weight", "train")
TYPE_NAMES = {dict: "an object", list: "a list", bool: "a truth value", int: "a number", float: "a number"}


def type_name(value: Any) -> str:
    """What a JSON value is, in words."""
    return "null" if value is None else TYPE_NAMES.get(type(value), type(value).__name__)


def parse_turns(turns: Any, key: str) -> tuple[list[Message], list[bool]]:
    """Read turns of either spelling; returns the messages and, along them, which are to be learned."""
    if not isinstance(turns, list):
        raise BadRow(f"field '{key}' is {type_name(turns)}, not a list of turns")
    if not turns:
        raise BadRow(f"field '{key}' is empty")
    messages: list[Message] = []
    trained = []
    calls: list[dict[str, Any]] = []  # the latest function calls, whose ids and names the tool turns take up
    for index, turn in enumerate(turns):
        if not isinstance(turn, Mapping):
            raise BadRow(f"a turn in '{key}' is {type_name(turn)}, not an object", f"turn {index}")
        message = _turn(turn, key, index)
        calls = list(message.get("tool_calls", calls))
        if message["role"] == "tool" and calls:
            call = calls.pop(0)
            message = {"tool_call_id": call.get("id", ""), "name": call["function"]["name"], **message}
        messages.append(message)
        trained.append(message["role"] == "assistant" and _is_trained(turn, key, index))
    return messages, trained


def _turn(turn: Mapping[str, Any], key: str, index: int) -> Message:
    spoken = turn.get("role") or turn.get("from")
    if not isinstance(spoken, str) or spoken.lower() not in ROLES:
        raise BadRow(f"a turn in '{key}' has an unknown role", f"turn {index}: {spoken!r}")
    role = ROLES[spoken.lower()]
    value = turn.get("content") if turn.get("content") is not None else turn.get("value")
    if spoken.lower() in CALL_ROLES:
        return {"role": role, "content": "", "tool_calls": _calls_from_text(value, index)}
    message: Message = {"role": role}
    if role == "assistant" and turn.get("tool_calls"):
        message["tool_calls"] = _calls(turn["tool_calls"], index)
        value = "" if value is None else value
    message["content"] = _content(value, key, index)
    for extra in ("reasoning_content", "tool_call_id", "name"):
        if isinstance(turn.get(extra), str):
            message[extra] = turn[extra]
    return message


def _content(value: Any, key: str, index: int) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise BadRow(f"the content of a turn in '{key}' is {type_name(value)}, not text", f"turn {index}")
    return "".join(_part(part, key, index) for part in value)


def _part(part: Any, key: str, index: int) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type_name(part)
    if kind != "text":
        raise BadRow(f"a turn in '{key}' has a part of type {kind!r}; only text is known", f"turn {index}")
    text = part.get("text") if part.get("text") is not None else part.get("value")
    if not isinstance(text, str):
        raise BadRow(f"a text part of a turn in '{key}' holds {type_name(text)}, not text", f"turn {index}")
    return text


def _is_trained(turn: Mapping[str, Any], key: str, index: int) -> bool:
    weights = {name: turn[name] for name in WEIGHT_KEYS if turn.get(name) is not None}
    for name, weight in weights.items():
        if not isinstance(weight, (bool, int, float)) or weight not in (0, 1):
            raise BadRow(f"'{name}' of a turn in '{key}' is neither 0 nor 1", f"turn {index}: {weight!r}")
    return all(bool(weight) for weight in weights.values())


def _calls_from_text(value: Any, index: int) -> list[dict[str, Any]]:
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        raise BadRow("a function call is not JSON with name and arguments", f"turn {index}") from None
    return _calls(parsed if isinstance(parsed, list) else [parsed], index)


def _calls(calls: Any, index: int) -> list[dict[str, Any]]:
    """Function calls as ``{"id", "type": "function", "function": {"name", "arguments": object}}``.

    A missing id becomes nine letters and digits that count up with the turn, which is what Mistral's template asks for.
    """
    if not isinstance(calls, list) or not calls:
        raise BadRow("a function call is not JSON with name and arguments", f"turn {index}")
    return [_call(call, f"call{index % 1000:03d}{number % 100:02d}", index) for number, call in enumerate(calls)]


def _call(call: Any, default_id: str, index: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    arguments = function.get("arguments", function.get("parameters", {})) if isinstance(function, Mapping) else None
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            arguments = None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str) or arguments is None:
        raise BadRow("a function call is not JSON with name and arguments", f"turn {index}")
    given_id = call.get("id")
    return {
        "id": given_id if isinstance(given_id, str) else default_id,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def parse_tools(row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The schemas in a row's ``tools`` (a list, one object, or either as JSON text), wrapped; None without any."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError:
            raise BadRow("field 'tools' is text that is not JSON") from None
    if not tools:
        return None
    if isinstance(tools, Mapping):
        tools = [tools]
    if not isinstance(tools, list) or not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow("field 'tools' is not a list of objects")
    return [dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools]
