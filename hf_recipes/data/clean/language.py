"""The language of a text. Uses py3langid, whose model is part of the package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.data.clean.markdown_code import hide_code
from hf_recipes.data.clean.optional import load

SMALLEST_BYTES = 60  # of letters in UTF-8: some ten English words, twenty Chinese characters
SMALLEST_CONFIDENCE = 0.8
MOST_CHARACTERS = 500  # read of a text: the model walks it byte by byte, and more seldom changes the answer
_LETTERS = re.compile(r"[^\W\d_]+")
_NOT_PROSE = re.compile(
    r"https?://\S+|<[^<>]{1,80}>|\$[^$\n]{1,200}\$"
    r"|^.*(?:[;{}][ \t]*$|\w\(\S*\)|[\w\])] [=+*/<>!-]=? [\w\[({'\"]|^[ \t]*(?:#|//)).*$",  # lines that read as code
    re.MULTILINE,
)
# Varieties that the model tells apart by little, under the code that people mean.
_FOLDED = {"wuu": "zh", "yue": "zh", "nn": "no", "arz": "ar", "ary": "ar", "uzs": "uz", "hbo": "he", "sdh": "ku"}
UNDECIDED = "undecided"
_NO_LANGUAGE = "zxx"  # ISO 639-3: no linguistic content


def detect_language(text: str) -> str:
    """The ISO 639-1 code of the language that most of a text is in, or ``undecided``.

    Code, addresses, tags and formulas are left out. Undecided are texts of fewer than `SMALLEST_BYTES` bytes of letters
    and those where the model's confidence is below `SMALLEST_CONFIDENCE`.

    Raises:
        UserError: py3langid is not installed.
    """
    prose = _prose(text[: 4 * MOST_CHARACTERS])[:MOST_CHARACTERS]
    if len("".join(_LETTERS.findall(prose)).encode("utf-8", "ignore")) < SMALLEST_BYTES:
        return UNDECIDED
    confidences: dict[str, float] = {}
    for label, confidence in _identifier().rank(prose):
        code = _FOLDED.get(label, label)
        confidences[code] = confidences.get(code, 0.0) + confidence
    code = max(confidences, key=lambda each: confidences[each])
    return code if confidences[code] >= SMALLEST_CONFIDENCE and code != _NO_LANGUAGE else UNDECIDED


def check_languages(codes: Sequence[str]) -> None:
    """Raise `UserError` for a code that is not among the languages known."""
    known = set(_identifier().labels) - {*_FOLDED, _NO_LANGUAGE}
    for code in codes:
        if code not in known:
            hint = nearest(code, known) or f": known are {', '.join(sorted(known))}"
            raise UserError(f"clean.language: '{code}' is no language known here{hint}.")


def _prose(text: str) -> str:
    hidden, _ = hide_code(text)
    return _NOT_PROSE.sub(" ", hidden)


@cache
def _identifier() -> Any:
    module = load("py3langid.langid", "clean.language")
    return module.LanguageIdentifier.from_model_file(module.MODEL_FILE, norm_probs=True)
