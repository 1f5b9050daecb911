"""Text that was decoded by the wrong encoding, and letters written in several ways. Uses ftfy."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

from hf_recipes.data.clean.optional import load

# What ftfy changes without taking the text for mojibake: C1 controls, surrogates, ligatures.
_OTHERS = re.compile("[\x80-\x9f\ud800-\udfff\u0132\u0133\u0149\u01c4-\u01cc\u01f1-\u01f3\ufb00-\ufb06]")
_AT_LINE_START = ("\u00c2 ", "\u00c3 ")  # the one sign of mojibake that is none elsewhere in a line
# Every other sign holds a character from here and is at most `_WIDTH` long. ftfy's test for them takes 0.4 µs a
# character, so it is given only what stands around such characters.
_SIGN = re.compile("[\x80-\u2e7f\uf8ff\ufb00-\ufb06\ufffd]+")
_WIDTH = 7


def mend_unicode(text: str) -> str:
    """Mend mojibake ("â€™" → "’", "Ã©" → "é"), paired surrogates and typographic ligatures, and compose to NFC.

    Quotation marks, full-width characters, entities and line breaks stay as they are.

    Raises:
        UserError: ftfy is not installed.
    """
    if text.isascii():
        return text
    ftfy, config = _ftfy()
    if not _is_suspect(text, ftfy.badness.is_bad):
        return unicodedata.normalize("NFC", text)
    return str(ftfy.fix_text(text, config))


def _is_suspect(text: str, is_bad: Callable[[str], bool]) -> bool:
    """Whether ftfy may change more than the composition of a text; never False when it would."""
    if _OTHERS.search(text) or text.startswith(_AT_LINE_START) or any(f"\n{sign}" in text for sign in _AT_LINE_START):
        return True
    return is_bad("\n".join(text[max(0, run.start() - _WIDTH) : run.end() + _WIDTH] for run in _SIGN.finditer(text)))


@cache
def _ftfy() -> tuple[Any, Any]:
    ftfy = load("ftfy", "clean.unicode")
    config = ftfy.TextFixerConfig(
        unescape_html=False,
        remove_terminal_escapes=False,
        fix_character_width=False,
        uncurl_quotes=False,
        fix_line_breaks=False,
        remove_control_chars=False,
        explain=False,
    )
    return ftfy, config
