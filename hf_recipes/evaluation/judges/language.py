"""Which language a text is in, by `langdetect`, as IFEval does; seeded, since it samples."""

from __future__ import annotations

import importlib.util

from hf_recipes.evaluation.judges.packages import needed


def detector_is_here() -> bool:
    """Whether `langdetect` is installed."""
    return importlib.util.find_spec("langdetect") is not None


def is_language(text: str, code: str) -> bool:
    """Whether `text` is in the language of the ISO 639-1 code; a text without letters passes, as in IFEval.

    Raises:
        UserError: `langdetect` is not installed.
    """
    langdetect = needed("langdetect")
    langdetect.DetectorFactory.seed = 0
    try:
        return bool(langdetect.detect(text) == code)
    except langdetect.LangDetectException:
        return True
