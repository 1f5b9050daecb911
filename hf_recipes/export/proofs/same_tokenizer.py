"""Whether two directories' tokenizers do the same with text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TEXTS = (
    "Hello, world! It is 12:30; pay 1,234.50 €.",
    "  Two spaces before, a tab\tinside, a line\n\nbreak, trailing space ",
    "Größe, naïve façade, Ελλάδα, привет, 日本語 のテキスト, שלום, 🙂🇺🇳",
    'def f(x):\n    return {"a": [x ** 2, None]}  # done',
)
CONVERSATIONS: tuple[list[dict[str, str]], ...] = (
    [{"role": "user", "content": "Hello"}],
    [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi.\n"},
        {"role": "user", "content": " x"},
    ],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
)
_SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token")


def tokenizer_differences(one: str, other: str) -> list[str]:
    """What the tokenizers of two directories do differently, a sentence each: encoding of `TEXTS` and of every special
    token, special tokens, and rendering of `CONVERSATIONS`."""
    from transformers import AutoTokenizer

    x, y = (AutoTokenizer.from_pretrained(place, trust_remote_code=False) for place in (one, other))
    return [*_specials(x, y), *_encodings(x, y), *_renderings(x, y)]


def _specials(x: Any, y: Any) -> Iterable[str]:
    for key in _SPECIAL:
        if (mine := getattr(x, key, None)) != (yours := getattr(y, key, None)):
            yield f"{key} is {yours!r}, in training {mine!r}"
    if len(x) != len(y):
        yield f"it knows {len(y)} tokens, in training {len(x)}"


def _encodings(x: Any, y: Any) -> Iterable[str]:
    for text in [*TEXTS, *dict.fromkeys(x.all_special_tokens)]:
        if x(text)["input_ids"] != y(text)["input_ids"]:
            yield f"it encodes {text!r} otherwise than in training"


def _renderings(x: Any, y: Any) -> Iterable[str]:
    for messages in CONVERSATIONS:
        if _rendered(x, messages) != _rendered(y, messages):
            yield f"its chat template writes a conversation of {len(messages)} turns otherwise than in training"


def _rendered(tokenizer: Any, messages: list[dict[str, str]]) -> str:
    """The text, or why there is none: a template may refuse a system turn."""
    if not tokenizer.chat_template:
        return ""
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # whatever a template raises; it must be the same on both sides
        return f"{type(error).__name__}: {error}"
