"""How rows are laid out, and the one form all of them are brought into.

| format | fields (optional ones in brackets) |
| --- | --- |
| alpaca | instruction, [input], output, [system], [history: pairs of question and answer], [tools] |
| sharegpt | conversations (or conversation): turns of from/value, [system], [tools] |
| messages | messages: turns of role/content, [system], [tools] |
| prompt_completion | prompt, completion: text (a user turn, an assistant turn) or lists of turns, [system], [tools] |
| text | text: trained on as it is, without a chat template |

Turns may be written either way (from/value or role/content) in both chat formats; content is text or a list of typed
parts. ``tools`` are a list of schemas, or JSON text of one. ``loss_weight``, ``weight``, ``train``, ``training``,
``loss`` or ``loss_scale`` of 0 keeps an assistant turn from being trained on. Pure: neither torch nor transformers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.reading.tool_calls import parse_tools, type_name
from hf_recipes.data.reading.turns import Message, parse_turns

REQUIRED: dict[str, tuple[str, ...]] = {
    "messages": ("messages",),
    "sharegpt": ("conversations",),
    "prompt_completion": ("prompt", "completion"),
    "alpaca": ("instruction", "output"),
    "text": ("text",),
}
# Fields by other names in use, for the hint how to rename them.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "instruction": ("question", "query", "problem", "prompt", "input", "user"),
    "output": ("answer", "response", "solution", "completion", "target", "reply", "assistant"),
    "prompt": ("question", "query", "problem", "instruction", "input", "user"),
    "completion": ("answer", "response", "solution", "output", "target", "reply", "assistant"),
    "messages": ("dialog", "dialogue", "chat", "turns"),
    "text": ("content", "code", "document", "body"),
}
MEDIA = ("images", "videos", "audios")


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
        UserError: the rows have no known format, not the one asked for, or are made for training on preferences.
    """
    votes = Counter(name for row in rows if (name := _format_of(row)))
    found = votes.most_common(1)[0][0] if votes else None
    if asked == "auto":
        _refuse_preferences(rows, source)
        if found:
            return found
    elif any(_has_fields(row, asked) for row in rows):
        return asked
    keys = ", ".join(map(str, rows[0])) or "none"
    known = "; ".join(f"{name} ({', '.join(needed)})" for name, needed in REQUIRED.items())
    what = "has no format known here" if asked == "auto" else f"is not of format {asked}"
    hint = f"set format: {found}" if found else _renaming(rows[0])
    raise UserError(f"'{source}' {what}: its first row has the keys {keys}; known are {known}; {hint}.")


def _has_fields(row: Mapping[str, Any], name: str) -> bool:
    return all(key in row for key in REQUIRED[name]) or (name == "sharegpt" and "conversation" in row)


def _format_of(row: Mapping[str, Any]) -> str | None:
    return next((name for name in REQUIRED if _has_fields(row, name)), None)


def _refuse_preferences(rows: Sequence[Mapping[str, Any]], source: str) -> None:
    """Raise `UserError` for rows of good and bad answers, half of which this training must not learn."""
    if all("chosen" in row and "rejected" in row for row in rows):
        ours = "messages" if isinstance(rows[0]["chosen"], list) and "prompt" not in rows[0] else "completion"
        raise UserError(
            f"'{source}' holds preferences (chosen, rejected), not answers to learn: to learn the chosen ones, rename "
            f"with columns: {{{ours}: chosen}}."
        )
    for key in ("label", "kto_tag"):
        if all(isinstance(row.get(key), bool) and _format_of(row) for row in rows):
            raise UserError(
                f"'{source}' marks wanted and unwanted answers with '{key}': keep the rows where it is true, or set "
                "the format to learn all of them."
            )


def _renaming(row: Mapping[str, Any]) -> str:
    """What to write under ``columns`` for a row of no known format."""
    for name, needed in REQUIRED.items():
        absent = [ours for ours in needed if ours not in row]
        others = {ours: next((each for each in OTHER_NAMES.get(ours, ()) if each in row), None) for ours in absent}
        if len(absent) < len(needed) and all(others.values()):
            added = ", ".join(f"{ours}: {theirs}" for ours, theirs in others.items())
            return f"for {name} add columns: {{{added}}}"
    found = {ours: next((name for name in names if name in row), None) for ours, names in OTHER_NAMES.items()}
    pairs = (("instruction", "output"), ("messages",), ("text",))
    fitting = next((pair for pair in pairs if all(found[ours] for ours in pair)), None)
    example = ", ".join(f"{ours}: {found[ours]}" for ours in fitting) if fitting else "instruction: question"
    return f"rename with columns beside its path{':' if fitting else ', e.g.'} columns: {{{example}}}"


def to_example(row: Mapping[str, Any], format_name: str) -> Example:
    """Bring a row of a known format into the common form; raises `BadRow` that names the field at fault."""
    for key in MEDIA:
        if row.get(key):
            raise BadRow(f"field '{key}' is not empty; only text is known here")
    example = CONVERTERS[format_name](row)
    if example.text is None:
        check_turns(example.messages)
    return example


def check_turns(messages: Sequence[Message]) -> None:
    """Raise `BadRow` for orders of turns that cannot be trained on; nothing is ever reordered or merged."""
    answered = False
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "system" and index:
            twice = any(before["role"] == "system" for before in messages[:index])
            raise BadRow("more than one system turn" if twice else "the system turn is not the first")
        if role == "assistant":
            answered = True
            if not message.get("tool_calls") and (not message["content"] or message["content"].isspace()):
                raise BadRow("an assistant turn is empty", f"turn {index}")
    if not answered:
        raise BadRow("no assistant turn")


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
    parts = [part for part in (instruction, extra) if part and not part.isspace()]
    messages.append({"role": "user", "content": "\n\n".join(parts)})
    messages.append({"role": "assistant", "content": _text(row, "output")})
    return Example(messages, [message["role"] == "assistant" for message in messages], parse_tools(row))


def _from_chat(row: Mapping[str, Any], key: str) -> Example:
    turns = row.get(key)
    messages, trained = parse_turns(turns, key)
    tools = parse_tools(row, turns)
    if tools and messages[0]["role"] == "system" and not messages[0]["content"]:
        del messages[0], trained[0]  # the turn was only there to carry the tools
    return _with_system(row, messages, trained, tools)


def _conversation_key(row: Mapping[str, Any]) -> str:
    return "conversation" if "conversation" in row and "conversations" not in row else "conversations"


def _with_system(
    row: Mapping[str, Any], messages: list[Message], trained: list[bool], tools: list[dict[str, Any]] | None
) -> Example:
    system = _system_turn(row)
    return Example(system + messages, [False] * len(system) + trained, tools)


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
    return _with_system(row, messages, trained, parse_tools(row))


CONVERTERS: dict[str, Callable[[Mapping[str, Any]], Example]] = {
    "alpaca": _from_alpaca,
    "sharegpt": lambda row: _from_chat(row, _conversation_key(row)),
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
