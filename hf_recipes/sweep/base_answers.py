"""The base model's answers, which are the same for all trials: asked once, and lent to the others."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

_ANSWERS = Path("evaluation/base.jsonl")


def lend_base_answers(run: Path, others: Iterable[Path]) -> Path | None:
    """Copy the base model's kept answers of another run into one that has none yet, and return where they came from.

    The evaluation itself uses them only where their header names the same model, settings and precision.

    Args:
        run: to be evaluated.
        others: run directories that may have been.
    """
    if (run / _ANSWERS).exists():
        return None
    source = next((other / _ANSWERS for other in others if (other / _ANSWERS).is_file()), None)
    if source is None:
        return None
    (run / _ANSWERS).parent.mkdir(parents=True, exist_ok=True)
    partial = (run / _ANSWERS).with_suffix(".partial")
    shutil.copyfile(source, partial)
    partial.replace(run / _ANSWERS)
    return source
