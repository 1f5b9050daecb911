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
MOST_CHARACTERS = 2000  # read of a text; more does not change the answer
_LETTERS = re.compile(r"[^\W\d_]+")
_NOT_PROSE = re.compile(r"https?://\S+|<[^<>]{1,80}>|\$[^$\n]{1,200}\$")
UNDECIDED = "undecided"


def detect_language(text: str) -> str:
    """The ISO 639-1 code of the language that most of a text is in, or ``undecided``.

    Code, addresses, tags and formulas are left out. Undecided are texts of fewer than `SMALLEST_BYTES` bytes of letters
    and those where the model's confidence is below `SMALLEST_CONFIDENCE`.

    Raises:
        UserError: py3langid is not installed.
    """
    prose = _prose(text[: 2 * MOST_CHARACTERS])[:MOST_CHARACTERS]
    if len("".join(_LETTERS.findall(prose)).encode("utf-8", "ignore")) < SMALLEST_BYTES:
        return UNDECIDED
    code, confidence = _identifier().classify(prose)
    return str(code) if confidence >= SMALLEST_CONFIDENCE else UNDECIDED


def check_languages(codes: Sequence[str]) -> None:
    """Raise `UserError` for a code that is not among the languages known."""
    known = _identifier().labels
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
