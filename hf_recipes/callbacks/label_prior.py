"""What the loss of a model that has learned nothing of its inputs would be: the entropy of the labels, and ln V."""

from __future__ import annotations

import math
import numbers
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hf_recipes.core import ranks
from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.core.random_state import random_state_kept

LABEL_PRIOR = "the entropy of the label prior"
UNIFORM = "the loss of guessing evenly"


@dataclass(frozen=True)
class LabelPrior:
    """How labels are shared out.

    `entropy` is in nats: the loss of a model that predicts these shares whatever the input. `top_share` is the share of
    the commonest label, `labels` how many were counted.
    """

    entropy: float
    top_label: int
    top_share: float
    labels: int


def prior_of(labels: Iterable[int]) -> LabelPrior | None:
    """Count labels (token ids or class numbers; -100 left out). None when there are none."""
    counts = Counter(label for label in labels if label != IGNORED_LABEL)
    total = counts.total()
    if not total:
        return None
    top_label, top = counts.most_common(1)[0]
    entropy = -sum(count / total * math.log(count / total) for count in counts.values())
    return LabelPrior(max(entropy, 0.0), top_label, top / total, total)


def dataset_prior(dataset: Any, limit: int = 1000) -> LabelPrior | None:
    """The prior of a dataset's `labels` (or `label`), from up to `limit` rows spread evenly over it.

    None where it cannot be had: a streamed dataset, rows without whole-number labels. The state of random numbers is
    left as it was, whatever reading a row does.
    """
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return None
    rows = len(dataset)
    picked = range(rows) if rows <= limit else [index * rows // limit for index in range(limit)]
    with random_state_kept():
        try:
            return prior_of(label for index in picked for label in _labels_of(dataset[index]))
        except Exception:  # a dataset may raise anything; its prior is then not known, and the run goes on
            return None


def shared_prior(dataset: Any, limit: int = 1000) -> LabelPrior | None:
    """`dataset_prior` of rank 0, on every rank; call it alike on all of them."""
    return ranks.broadcast(dataset_prior(dataset, limit) if ranks.is_main() else None)


def reference_levels(prior: LabelPrior | None, choices: int | None) -> dict[str, float]:
    """Names and values of the losses that a model without knowledge of its inputs has.

    Args:
        prior: of the training labels.
        choices: words of the vocabulary, or classes.
    """
    levels = {}
    if prior is not None and prior.entropy > 0:
        levels[LABEL_PRIOR] = prior.entropy
    if choices is not None and choices > 1:
        levels[UNIFORM] = math.log(choices)
    return levels


def choices_of(model: Any) -> int | None:
    """Among how many labels the model chooses: words where it has a language-model head, else classes."""
    config = getattr(model, "config", None)
    if config is None:
        return None
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is None:
        return getattr(config, "num_labels", None)
    return getattr(config.get_text_config(), "vocab_size", None)


def _labels_of(row: Any) -> Iterator[int]:
    yield from _flat(row["labels"] if "labels" in row else row["label"])


def _flat(value: Any) -> Iterator[int]:
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, numbers.Integral):
        yield int(value)
    else:
        raise TypeError(f"{value!r} is not a whole number")
