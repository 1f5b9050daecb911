"""One hash over all that decides what the prepared data is: file contents, settings, tokenizer, chat template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

VERSION = 2  # raised when the same inputs come to give other samples


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256 over vocabulary and rules of a fast tokenizer, its special tokens and its chat template."""
    parts = [
        tokenizer.backend_tokenizer.to_str(),
        json.dumps(tokenizer.special_tokens_map, sort_keys=True, default=str),
        json.dumps(tokenizer.chat_template, sort_keys=True),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def fingerprint(parts: Mapping[str, Any]) -> str:
    """SHA-256 over JSON-like `parts` in a fixed order; data prepared from equal parts are equal."""
    text = json.dumps({"version": VERSION, **parts}, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
