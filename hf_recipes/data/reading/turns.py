"""Turns of a conversation as people write them → messages with role, content and, where present, function calls.

The role names are those of ShareGPT and its kin (FastChat, Vicuna), OpenAI, LLaMA-Factory, Axolotl, ms-swift, Llama
(``ipython``), Gemma (``model``), LangChain (``ai``) and OpenAssistant (``prompter``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.tool_calls import answered_call, calls_from_text, calls_of_turn, parse_calls, type_name

Message = dict[str, Any]  # role, content (text); where present also tool_calls, tool_call_id, name, reasoning_content

ASSISTANTS = ("assistant", "gpt", "chatgpt", "bing", "bard", "model", "bot", "chatbot", "ai")
CALL_ROLES = ("function_call", "tool_call")
TOOLS = (
    *("tool", "tool_response", "tool_result", "function", "function_response", "function_result"),
    *("observation", "observations", "ipython"),
)
ROLES: dict[str, str] = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys((*ASSISTANTS, *CALL_ROLES), "assistant"),
    **dict.fromkeys(TOOLS, "tool"),
}
WEIGHT_KEYS = ("loss_weight", "weight", "train", "training", "loss", "loss_scale")
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
TEXT_PARTS = {"text": ("text", "value"), "input_text": ("text",), "output_text": ("text",), "refusal": ("refusal",)}
REASONING_PARTS = {"reasoning": ("value", "text", "reasoning"), "thinking": ("thinking", "value", "text")}
CALL_PARTS = ("tool_call", "tool_use")


def parse_turns(turns: Any, key: str) -> tuple[list[Message], list[bool]]:
    """Read turns of either spelling (from/value, role/content).

    Args:
        turns: a row's list of turns.
        key: the field it stands in, for messages.

    Returns:
        The messages and, along them, whether each is to be learned (assistant turns of weight other than 0).

    Raises:
        BadRow: which turn of which field is at fault.
    """
    if not isinstance(turns, list):
        raise BadRow(f"field '{key}' is {type_name(turns)}, not a list of turns")
    if not turns:
        raise BadRow(f"field '{key}' is empty")
    messages: list[Message] = []
    trained = []
    open_calls: list[dict[str, Any]] = []  # function calls whose results have not come yet
    for index, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise BadRow(f"a turn in '{key}' is {type_name(turn)}, not an object", f"turn {index}")
        message = _turn(turn, key, index)
        role = message["role"]
        if "tool_calls" in message:
            if messages and messages[-1]["role"] == "tool":
                open_calls = []
            open_calls = open_calls + message["tool_calls"]
        elif role == "tool" and open_calls:
            message = answered_call(message, open_calls)
        messages.append(message)
        trained.append(role == "assistant" and _is_trained(turn, key, index))
    return messages, trained


def _turn(turn: Mapping[str, Any], key: str, index: int) -> Message:
    spoken = turn.get("role") or turn.get("from")
    role = ROLES.get(spoken) if isinstance(spoken, str) else None
    if role is None:
        spoken, role = _odd_role(spoken, key, index)
    content = turn.get("content")
    if content is None:
        content = turn.get("value")
    if len(turn) == 2 and isinstance(content, str) and spoken not in CALL_ROLES:
        return {"role": role, "content": content}  # the usual turn, which has nothing else to look for
    if spoken in CALL_ROLES:
        return {"role": role, "content": "", "tool_calls": calls_from_text(content, index)}
    if role == "assistant":
        return _answer(turn, content, key, index)
    message: Message = {"role": role, "content": content if isinstance(content, str) else _text(content, key, index)}
    for extra in ("tool_call_id", "name"):
        if isinstance(turn.get(extra), str):
            message[extra] = turn[extra]
    return message


def _odd_role(spoken: Any, key: str, index: int) -> tuple[str, str]:
    """A role in other spelling (``Human``, ``tool-response``), in its usual one and as one of the four."""
    usual = spoken.strip().lower().replace("-", "_").replace(" ", "_") if isinstance(spoken, str) else ""
    if usual not in ROLES:
        raise BadRow(f"a turn in '{key}' has an unknown role", f"turn {index}: {spoken!r}")
    return usual, ROLES[usual]


def _answer(turn: Mapping[str, Any], content: Any, key: str, index: int) -> Message:
    calls = calls_of_turn(turn, index)
    if content is None:
        content = turn.get("refusal") if turn.get("refusal") is not None else "" if calls else None
    reasoning = next((turn[name] for name in REASONING_KEYS if turn.get(name) is not None), None)
    if isinstance(content, list):
        content, thought, called = _answer_parts(content, key, index)
        calls = calls + called
        reasoning = thought if reasoning is None else reasoning
    message: Message = {"role": "assistant"}
    if calls:
        message["tool_calls"] = calls
    message["content"] = content if isinstance(content, str) else _text(content, key, index)
    if reasoning is not None:
        message["reasoning_content"] = reasoning if isinstance(reasoning, str) else _text(reasoning, key, index)
    if isinstance(turn.get("name"), str):
        message["name"] = turn["name"]
    return message


def _answer_parts(parts: list[Any], key: str, index: int) -> tuple[str, str | None, list[dict[str, Any]]]:
    """The text, the reasoning and the function calls of an answer that is written in parts."""
    text, reasoning, calls = [], [], []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in REASONING_PARTS:
            reasoning.append(_part_text(part, REASONING_PARTS[kind], key, index))
        elif kind in CALL_PARTS:
            calls.append(calls_from_text(part["value"], index) if "value" in part else [part])
        else:
            text.append(_part(part, key, index))
    called = parse_calls([call for some in calls for call in some], index) if calls else []
    return "".join(text), "".join(reasoning) if reasoning else None, called


def _text(content: Any, key: str, index: int) -> str:
    if not isinstance(content, list):
        raise BadRow(f"the content of a turn in '{key}' is {type_name(content)}, not text", f"turn {index}")
    return "".join(_part(part, key, index) for part in content)


def _part(part: Any, key: str, index: int) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, Mapping) else type_name(part)
    if not isinstance(kind, str) or kind not in TEXT_PARTS:
        raise BadRow(f"a turn in '{key}' has a part of type {kind!r}; only text is known here", f"turn {index}")
    return _part_text(part, TEXT_PARTS[kind], key, index)


def _part_text(part: Mapping[str, Any], names: tuple[str, ...], key: str, index: int) -> str:
    for name in WEIGHT_KEYS if len(part) > 2 else ():
        if part.get(name) is not None:
            raise BadRow(f"a part of a turn in '{key}' has a '{name}' of its own; only turns may", f"turn {index}")
    text = next((part[name] for name in names if part.get(name) is not None), None)
    if not isinstance(text, str):
        raise BadRow(f"a {part['type']} part of a turn in '{key}' holds {type_name(text)}, not text", f"turn {index}")
    return text


def _is_trained(turn: Mapping[str, Any], key: str, index: int) -> bool:
    if len(turn) <= 2:  # a role and a content: the usual turn
        return True
    trained = True
    for name in WEIGHT_KEYS:
        weight = turn.get(name)
        if weight is None:
            continue
        if not isinstance(weight, (bool, int, float)) or weight not in (0, 1):
            raise BadRow(f"'{name}' of a turn in '{key}' is neither 0 nor 1", f"turn {index}: {weight!r}")
        trained = trained and bool(weight)
    return trained
