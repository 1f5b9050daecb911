"""The one door by which foreign text enters the page."""

from __future__ import annotations

import html
import re

# Not allowed in HTML or not encodable as UTF-8: controls but tab and line feed, lone surrogates, noncharacters.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")


def text(value: object) -> str:
    """Any value as text that is safe inside an element and inside a quoted attribute."""
    return html.escape(_FORBIDDEN.sub("�", str(value)), quote=True)
