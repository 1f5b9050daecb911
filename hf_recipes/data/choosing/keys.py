"""Hashes by which equal rows, equal prompts, equal answers and equal field values are found. Pure."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from dataclasses import dataclass
from typing import Any

from hf_recipes.data.reading.formats import Example
from hf_recipes.data.reading.turns import Message


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
    messages = example.messages
    spoken = [_spoken(message) for message in messages]
    answers = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    before_last = spoken[: answers[-1]] if answers else spoken
    said = [spoken[index] for index in answers]
    return RowKeys(text_hash(" ".join(spoken)), text_hash(" ".join(before_last)), text_hash(" ".join(said)))


def text_hash(text: str) -> int:
    """A 64-bit hash of the text but for white space and Unicode composition (NFC)."""
    words = " ".join(text.split())
    if not words.isascii():
        words = unicodedata.normalize("NFC", words)
    return _hash(words.encode("utf-8", "surrogatepass"))


def value_hash(value: Any) -> int:
    """A 64-bit hash of a field's value, never 0."""
    return _hash(json.dumps(value, sort_keys=True, default=str).encode()) | 1


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def whole_text(example: Example) -> str:
    """All that is said in a sample, as one text, for finding near duplicates."""
    if example.text is not None:
        return example.text
    return "\n".join(_spoken(message) for message in example.messages)


def _spoken(message: Message) -> str:
    calls = message.get("tool_calls")
    return f"{message['role']}: {message['content']} {calls}" if calls else f"{message['role']}: {message['content']}"
