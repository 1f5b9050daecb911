"""Function calls, their results and the schemas of tools, in one form whatever a row's spelling."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hf_recipes.data.ledger import BadRow

NO_CALL = "a function call is not JSON with name and arguments"
TYPE_NAMES = {dict: "an object", list: "a list", bool: "a truth value", int: "a number", float: "a number"}


def type_name(value: Any) -> str:
    """What a JSON value is, in words."""
    return "null" if value is None else TYPE_NAMES.get(type(value), type(value).__name__)


def calls_of_turn(turn: Mapping[str, Any], index: int) -> list[dict[str, Any]]:
    """The calls an assistant's turn makes in ``tool_calls`` (a list, or JSON text) or the older ``function_call``."""
    calls = turn.get("tool_calls")
    if calls:
        return calls_from_text(calls, index)
    legacy = turn.get("function_call")
    return parse_calls([legacy], index) if legacy else []


def calls_from_text(value: Any, index: int) -> list[dict[str, Any]]:
    """The calls in a turn that is nothing but one call or a list of them, most often as JSON text."""
    parsed = _from_json(value)
    return parse_calls(parsed if isinstance(parsed, list) else [parsed], index)


def parse_calls(calls: list[Any], index: int) -> list[dict[str, Any]]:
    """Bring calls into the form ``{"id", "type": "function", "function": {"name", "arguments": object}}``.

    A missing id becomes nine letters and digits that count up with the turn, which is what Mistral's template asks for.

    Raises:
        BadRow: a call has no name, or its arguments are not an object.
    """
    if not calls:
        raise BadRow(NO_CALL, f"turn {index}")
    return [_call(call, f"call{index % 1000:03d}{number % 100:02d}", index) for number, call in enumerate(calls)]


def _call(call: Any, default_id: str, index: int) -> dict[str, Any]:
    call = _from_json(call)
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRow(NO_CALL, f"turn {index}")
    written: Any = next((function[name] for name in ("arguments", "parameters", "input") if name in function), None)
    # A function without parameters is often called with an empty string for its arguments, or none at all.
    arguments = {} if written in ("", None) else _from_json(written)
    if not isinstance(arguments, Mapping):
        raise BadRow("the arguments of a function call are not a JSON object", f"turn {index}: {function['name']}")
    given_id = call.get("id")
    return {
        "id": given_id if isinstance(given_id, str) and given_id else default_id,
        "type": "function",
        "function": {"name": function["name"], "arguments": dict(arguments)},
    }


def _from_json(value: Any) -> Any:
    """A value that may be written as JSON text; None where it is text but not JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


def answered_call(message: dict[str, Any], open_calls: list[dict[str, Any]]) -> dict[str, Any]:
    """A tool's turn with the id and name of the call it answers, which is taken out of `open_calls`.

    It is the call whose id the turn gives, or else the first one open.
    """
    given_id = message.get("tool_call_id")
    number = next((number for number, call in enumerate(open_calls) if call["id"] == given_id), None)
    if number is None and given_id is not None:
        return message
    call = open_calls.pop(number or 0)
    return {"tool_call_id": call["id"], "name": call["function"]["name"], **message}


def parse_tools(row: Mapping[str, Any], messages: list[Any] | None = None) -> list[dict[str, Any]] | None:
    """The schemas of the tools a row offers, wrapped as ``{"type": "function", "function": …}``; None without any.

    They may stand in the row's ``tools`` (or the older ``functions``) or in those of its first turn: a list, one
    object, or either as JSON text.

    Raises:
        BadRow: they are not schemas, or stand in both places.
    """
    first = messages[0] if messages and isinstance(messages[0], Mapping) else {}
    given = [(holder, key) for key in ("tools", "functions") for holder in (row, first) if key in holder]
    found = [tools for holder, key in given if (tools := _tools(holder, key))]
    if len(found) > 1:
        raise BadRow("tools are given in more than one place")
    return found[0] if found else None


def _tools(holder: Mapping[str, Any], key: str) -> list[dict[str, Any]] | None:
    tools = holder.get(key)
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError):
            raise BadRow(f"field '{key}' is text that is not JSON") from None
    if not tools:
        return None
    tools = [_from_json(tool) for tool in tools] if isinstance(tools, list) else [tools]
    if not all(isinstance(tool, Mapping) for tool in tools):
        raise BadRow(f"field '{key}' is not a list of objects")
    return [dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)} for tool in tools]
