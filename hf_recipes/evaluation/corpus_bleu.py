"""BLEU of a corpus from sums over its rows, so that resampled corpora need no new counting of n-grams.

Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine Translation"; the smoothing of n-gram orders
without a match ("exp") is that of sacrebleu, after Chen and Cherry 2014, method 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hf_recipes.evaluation.bootstrap import Sums
from hf_recipes.evaluation.judges.text import needed

_ORDERS = 4
COLUMNS = 2 * _ORDERS + 2  # n-grams that match, n-grams, for each order; length of the answer and of the reference


def bleu_counts(answer: str, references: Sequence[str], tokenizer: str = "13a") -> list[float]:
    """One row's contributions, as sacrebleu counts them; the reference's length is that nearest to the answer's.

    Args:
        tokenizer: sacrebleu's name of the way to cut into words, one for the whole corpus (see `bleu_tokenizer`).

    Raises:
        UserError: sacrebleu is not installed.
    """
    metric = needed("sacrebleu").BLEU(tokenize=tokenizer, effective_order=True)
    score = metric.sentence_score(_encodable(answer), [_encodable(text) for text in references])
    return [float(value) for value in (*score.counts, *score.totals, score.sys_len, score.ref_len)]


def bleu_of_sums(sums: Sums) -> Sums:
    """BLEU, a share from 0 to 1, from summed `bleu_counts` (…, `COLUMNS`)."""
    matches, totals = sums[..., :_ORDERS], sums[..., _ORDERS : 2 * _ORDERS]
    answered, wanted = sums[..., -2], sums[..., -1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # the k-th order without a match counts as 1/2**k of a match
        without = (matches == 0) & (totals > 0)
        smoothed = np.where(without, 0.5 ** np.cumsum(without, axis=-1), matches)
        logs = np.log(smoothed / totals).mean(-1)
        brevity = np.where(answered < wanted, np.exp(1 - wanted / answered), 1.0)
        score: Sums = brevity * np.exp(logs)
    return np.where((totals > 0).all(-1) & (matches > 0).any(-1), score, 0.0)


def _encodable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")
