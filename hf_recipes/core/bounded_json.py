"""JSON from files that nobody vouches for: bounded before it is parsed, and read as strictly as other languages do."""

from __future__ import annotations

import json
from typing import Any

# A list element or a key takes a byte or two in a file and up to 100 in memory, so the size alone bounds little.
MAX_ITEMS = 5_000_000


class TooMuchJson(ValueError):
    """More values than `MAX_ITEMS`: not parsed."""


def parse_json(raw: bytes, *, unique_names: bool = False) -> Any:
    """Parse UTF-8 JSON.

    Args:
        unique_names: refuse an object that holds a name twice, of which readers take different ones.

    Raises:
        TooMuchJson: it holds too many values to be parsed.
        ValueError: it is no UTF-8, no JSON, or holds a name twice.
        RecursionError: it is nested too deeply.
    """
    if len(raw) > MAX_ITEMS and raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MAX_ITEMS:
        raise TooMuchJson(f"holds more than {MAX_ITEMS:,} values")
    text = raw.decode("utf-8")  # json.loads would guess UTF-16 and UTF-32, which others refuse
    return json.loads(text, object_pairs_hook=_unique if unique_names else None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it names '{twice}' twice")
    return value
