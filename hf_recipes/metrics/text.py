"""Exact match, F1, ROUGE, BLEU and chrF as one metric; see `evaluation.judges.text`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.evaluation.judges.text import TEXT_SCORES, corpus_scores
from hf_recipes.metrics.base import TextMetric


class TextScores(TextMetric):
    """Scores of answers against one reference each, as shares from 0 to 1; BLEU and chrF are those of the corpus.

    Args:
        scores: of ``exact_match``, ``exact_match_squad``, ``f1``, ``rouge``, ``bleu``, ``chrf``.
        settings: of `evaluate.Metric`.

    Raises:
        UserError: an unknown score.
    """

    needs_references = True

    def __init__(self, scores: Sequence[str] = ("exact_match", "f1"), **settings: Any) -> None:
        for name in scores:
            if name not in TEXT_SCORES:
                known = ", ".join(TEXT_SCORES)
                raise UserError(f"'{name}' is no score{nearest(name, TEXT_SCORES)}: known are {known}.")
        self._scores = list(scores)
        super().__init__(**settings)

    def _compute(self, predictions: Sequence[str], references: Sequence[str]) -> dict[str, float]:
        several = [[reference] for reference in references]
        found: dict[str, float] = {}
        for name in self._scores:
            found.update(corpus_scores(name, list(predictions), several))
        return found
