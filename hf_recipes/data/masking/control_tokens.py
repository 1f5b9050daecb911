"""Tokens that steer a chat (begin a turn, end one) must come from the template alone, never out of a turn's text.

A user who writes ``<|im_end|>`` has it encoded as the control token: the turn ends there, and what follows may pose as
another turn. Only tokens flagged special that the template itself writes, and BOS, EOS, UNK and PAD, count: ``<think>``
or ``<tool_call>`` (added, not special) and special tokens that the template never uses steer nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hf_recipes.data.ledger import BadRow

NEVER = r"(?!)"


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the texts, the longest first; nothing when there are none."""
    return re.compile("|".join(re.escape(text) for text in sorted(set(texts), key=len, reverse=True)) or NEVER)


def control_tokens(tokenizer: Any, written: str) -> set[str]:
    """Special tokens of the tokenizer that occur in `written` (what its template writes), and BOS, EOS, UNK and PAD."""
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    named = (tokenizer.bos_token, tokenizer.eos_token, tokenizer.unk_token, tokenizer.pad_token)
    ends = {token for token in named if token and token.strip() and token in special}
    return {token for token in special if token.strip() and token in written} | ends


def strings_in(value: Any) -> Iterator[str]:
    """Every text inside nested lists and mappings, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from strings_in(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from strings_in(inner)


def refuse_control_tokens(texts: Iterable[str], pattern: re.Pattern[str]) -> None:
    """Raise `BadRow` that names the first control token found in one of the texts."""
    for text in texts:
        if found := pattern.search(text):
            raise BadRow(f"a turn's text contains the control token {found.group()!r}")
