"""Hashes by which equal rows, equal prompts, equal answers and equal field values are found. Pure."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.data.reading.formats import Example
from hf_recipes.data.reading.turns import Message

_BYTES = 8


@dataclass(frozen=True)
class RowKeys:
    """64-bit hashes of a sample's whole text, of what stands before its last answer, and of its answers.

    64 bits: among a million rows, two unlike ones share a hash with a probability of 3e-8 (n² / 2^65).
    """

    key: int
    prompt_key: int
    answer_key: int


def row_keys(example: Example) -> RowKeys:
    """The hashes of a sample; text that differs in white space and Unicode composition alone is equal."""
    if example.text is not None:
        key = text_hash(example.text)
        return RowKeys(key, key, key)
    said = [_normal(_spoken(message)) for message in example.messages]
    answers = [index for index, message in enumerate(example.messages) if message["role"] == "assistant"]
    # One pass over the text: the prompt's digest is taken on the way to the whole row's.
    digest = hashlib.blake2b(digest_size=_BYTES)
    prompt_key = 0
    for index, text in enumerate(said):
        if answers and index == answers[-1]:
            prompt_key = _number(digest.digest())
        digest.update(text + b"\0")
    return RowKeys(_number(digest.digest()), prompt_key, _hash(b"\0".join(said[index] for index in answers)))


def prompt_key(messages: Sequence[Message]) -> int:
    """The `RowKeys.prompt_key` of a sample whose last answer follows on `messages`."""
    return row_keys(Example([*messages, {"role": "assistant", "content": ""}])).prompt_key


def text_hash(text: str) -> int:
    """A 64-bit hash of the text but for white space and Unicode composition (NFC)."""
    return _hash(_normal(text))


def _normal(text: str) -> bytes:
    words = " ".join(text.split())
    if not words.isascii():
        words = unicodedata.normalize("NFC", words)
    return words.encode("utf-8", "surrogatepass")


def value_hash(value: Any) -> int:
    """A 64-bit hash of a field's value, never 0."""
    return _hash(json.dumps(value, sort_keys=True, default=str).encode()) | 1


def _hash(data: bytes) -> int:
    return _number(hashlib.blake2b(data, digest_size=_BYTES).digest())


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little")


def whole_text(example: Example) -> str:
    """All that is said in a sample, as one text, for finding near duplicates. System turns are left out: they are often
    the same in all rows, and long."""
    if example.text is not None:
        return example.text
    return "\n".join(_spoken(message) for message in example.messages if message["role"] != "system")


def _spoken(message: Message) -> str:
    calls = message.get("tool_calls")
    return f"{message['role']}: {message['content']} {calls}" if calls else f"{message['role']}: {message['content']}"
