"""Text that was decoded by the wrong encoding, and letters written in several ways. Uses ftfy."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import Any

from hf_recipes.data.clean.optional import load

# What ftfy changes without taking the text for mojibake: C1 controls, surrogates, ligatures; and the one thing its test
# for mojibake sees at the start of a line alone.
_SUSPECT = re.compile(
    "[\x80-\x9f\ud800-\udfff\u0132\u0133\u0149\u01c4-\u01cc\u01f1-\u01f3\ufb00-\ufb06]|^[\u00c2\u00c3] ", re.MULTILINE
)


def mend_unicode(text: str) -> str:
    """Mend mojibake ("â€™" → "’", "Ã©" → "é"), paired surrogates and typographic ligatures, and compose to NFC.

    Quotation marks, full-width characters, entities and line breaks stay as they are.

    Raises:
        UserError: ftfy is not installed.
    """
    if text.isascii():
        return text
    ftfy, config = _ftfy()
    if not ftfy.badness.is_bad(text) and not _SUSPECT.search(text):
        return unicodedata.normalize("NFC", text)
    return str(ftfy.fix_text(text, config))


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
