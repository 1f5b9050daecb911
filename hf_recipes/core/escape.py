"""The doors by which foreign text enters the page and the terminal."""

from __future__ import annotations

import html
import json
import re
from typing import Any

# Not allowed in HTML or not encodable as UTF-8: controls but tab and line feed, lone surrogates, noncharacters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
# What moves a terminal's cursor, turns its writing direction, or rings it.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def text(value: object) -> str:
    """Any value as text that is safe inside an element and inside a quoted attribute."""
    return html.escape(_FORBIDDEN.sub("�", str(value)), quote=True)


def script_json(value: Any) -> str:
    """JSON that is safe inside a ``<script>``: pure ASCII, and no ``<`` that could end it or open a comment."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def plain(value: object) -> str:
    """Any value as one line for a terminal, without control sequences."""
    return " ".join(_UNPRINTABLE.sub("�", str(value)).split())
