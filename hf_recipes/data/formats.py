"""How rows are laid out, and the one form all of them are brought into.

| format | fields (optional ones in brackets) |
| --- | --- |
| alpaca | instruction, [input], output, [system], [history: pairs of question and answer] |
| sharegpt | conversations: turns of from/value, [system], [tools: a list, or JSON in a string] |
| messages | messages: turns of role/content, [tools]; content is text or a list of text parts |
| prompt_completion | prompt, completion: text (one user turn, one assistant turn) or lists of messages, [tools] |
| text | text: trained on as it is, without a chat template |

Turns may be written either way (from/value or role/content) in both chat formats. ``loss_weight``, ``weight`` or
``train`` of 0 keeps an assistant turn from being trained on. Pure: neither torch nor transformers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.turns import Message, parse_tools, parse_turns, type_name

REQUIRED: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "prompt_completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
    "text": ("text",),
}


@dataclass(frozen=True)
class Example:
    """One sample: a conversation, or plain `text` (then `messages` is empty).

    `trained` runs along `messages`: whether the turn is to be learned (assistant turns only). `tools` are JSON schemas
    wrapped as ``{"type": "function", "function": …}``.
    """

    messages: list[Message] = field(default_factory=list)
    trained: list[bool] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    text: str | None = None


def detect_format(rows: Sequence[Mapping[str, Any]], source: str, asked: str = "auto") -> str:
    """The format of a source from its first rows; `asked` is checked against them unless it is ``auto``.

    Raises:
        UserError: the rows have no known format, or not the one asked for; shows the first row's keys.
    """
    votes = Counter(name for row in rows if (name := _format_of(row)))
    found = votes.most_common(1)[0][0] if votes else None
    if asked == "auto" and found:
        return found
    if asked != "auto" and any(all(key in row for key in REQUIRED[asked]) for row in rows):
        return asked
    keys = ", ".join(map(str, rows[0])) or "none"
    known = "; ".join(f"{name} ({', '.join(needed)})" for name, needed in REQUIRED.items())
    what = "has no format known here" if asked == "auto" else f"is not of format {asked}"
    hint = f"set format: {found}" if found else "rename with columns, e.g. columns: {instruction: question}"
    raise UserError(f"'{source}' {what}: its first row has the keys {keys}; known are {known}; {hint}.")


def _format_of(row: Mapping[str, Any]) -> str | None:
    return next((name for name, needed in REQUIRED.items() if all(key in row for key in needed)), None)


def to_example(row: Mapping[str, Any], format_name: str) -> Example:
    """Bring a row of a known format into the common form; raises `BadRow` that names the field at fault."""
    example = CONVERTERS[format_name](row)
    if example.text is None:
        check_turns(example.messages)
    return example


def check_turns(messages: Sequence[Message]) -> None:
    """Raise `BadRow` for orders of turns that cannot be trained on; nothing is ever reordered or merged."""
    systems = [index for index, message in enumerate(messages) if message["role"] == "system"]
    if len(systems) > 1:
        raise BadRow("more than one system turn")
    if systems and systems[0] != 0:
        raise BadRow("the system turn is not the first")
    answers = [message for message in messages if message["role"] == "assistant"]
    if not answers:
        raise BadRow("no assistant turn")
    if any(not message["content"].strip() and not message.get("tool_calls") for message in answers):
        raise BadRow("an assistant turn is empty")


def _from_text(row: Mapping[str, Any]) -> Example:
    text = _text(row, "text")
    if not text.strip():
        raise BadRow("field 'text' is empty")
    return Example(text=text)


def _from_alpaca(row: Mapping[str, Any]) -> Example:
    messages = _system_turn(row)
    for pair in _history(row):
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    instruction, extra = _text(row, "instruction"), _text(row, "input", optional=True)
    messages.append({"role": "user", "content": f"{instruction}\n\n{extra}" if extra.strip() else instruction})
    messages.append({"role": "assistant", "content": _text(row, "output")})
    return Example(messages, [message["role"] == "assistant" for message in messages])


def _from_chat(row: Mapping[str, Any], key: str) -> Example:
    messages, trained = parse_turns(row.get(key), key)
    system = _system_turn(row) if key == "conversations" else []
    return Example(system + messages, [False] * len(system) + trained, parse_tools(row))


def _from_prompt_completion(row: Mapping[str, Any]) -> Example:
    messages: list[Message] = []
    trained: list[bool] = []
    for key, role in (("prompt", "user"), ("completion", "assistant")):
        if isinstance(row.get(key), list):
            turns, learned = parse_turns(row[key], key)
        else:
            turns, learned = [{"role": role, "content": _text(row, key)}], [True]
        messages += turns
        trained += [flag and key == "completion" for flag in learned]
    return Example(messages, trained, parse_tools(row))


CONVERTERS: dict[str, Callable[[Mapping[str, Any]], Example]] = {
    "alpaca": _from_alpaca,
    "sharegpt": lambda row: _from_chat(row, "conversations"),
    "messages": lambda row: _from_chat(row, "messages"),
    "prompt_completion": _from_prompt_completion,
    "text": _from_text,
}


def _text(row: Mapping[str, Any], key: str, optional: bool = False) -> str:
    value = row.get(key)
    if isinstance(value, str):
        return value
    if optional and value is None:
        return ""
    if key not in row:
        raise BadRow(f"field '{key}' is missing")
    raise BadRow(f"field '{key}' is {type_name(value)}, not text")


def _system_turn(row: Mapping[str, Any]) -> list[Message]:
    system = _text(row, "system", optional=True)
    return [{"role": "system", "content": system}] if system.strip() else []


def _history(row: Mapping[str, Any]) -> list[list[str]]:
    pairs = row.get("history") or []
    if not isinstance(pairs, list) or not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(text, str) for text in pair)
        for pair in pairs
    ):
        raise BadRow("field 'history' is not a list of pairs of text")
    return pairs
