"""Conversations, encoded, and what of them is learned."""

from __future__ import annotations

from itertools import groupby

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.masks import Encoder
from hf_recipes.data.reading.formats import Example

CALL = {"id": "call00100", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}


def conversation(answers, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    for index, answer in enumerate(answers):
        messages += [{"role": "user", "content": f"Question {index}"}, {"role": "assistant", "content": answer}]
    return Example(messages, [message["role"] == "assistant" for message in messages])


def encode(tokenizer, example, **options):
    (encoded,) = Encoder(tokenizer, **options).encode([example])
    if isinstance(encoded, BadRow):
        raise encoded
    return encoded


def learned(tokenizer, encoded):
    """The text of each run of learned tokens."""
    pairs = zip(map(int, encoded.input_ids), map(int, encoded.labels), strict=True)
    runs = groupby(pairs, key=lambda pair: pair[1] != IGNORED_LABEL)
    return [tokenizer.decode([label for _, label in pairs]) for is_learned, pairs in runs if is_learned]
