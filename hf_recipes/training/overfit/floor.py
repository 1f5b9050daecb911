"""How low the loss on given samples can go at all: the entropy that their own contradictions leave."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hf_recipes.core.labels import IGNORED_LABEL, last_trained_stretch

Row = Mapping[str, Sequence[int]]

# The bound: so much above the floor, in nats a token, or so much of the way that there was to go.
MARGIN_NATS, MARGIN_SHARE = 0.1, 0.1


def entropy_floor(rows: Iterable[Row]) -> float:
    """The least mean cross-entropy, in nats a supervised token, that any model can have on `rows`.

    A causal model is a function of the prefix. Where the same prefix is followed by different labels, the best it can
    do is to give each label its frequency, and what remains is the conditional entropy of the label given the whole
    prefix, H(Y|X) = Σ_x n(x)/n · Σ_y −n(y|x)/n(x) · ln n(y|x)/n(x) (Cover and Thomas 2006, Elements of Information
    Theory, eq. 2.10; that no other prediction does better is Gibbs' inequality, theorem 2.6.3). It is exact for these
    samples, no estimate of what they were drawn from; 0 where no two of them contradict each other.

    Args:
        rows: each with ``input_ids`` and ``labels`` (−100 where not trained), the label standing where its token does.

    Returns:
        Nats a token; 0 where nothing is supervised.
    """
    nodes: dict[tuple[int, int], int] = {}  # a trie: (prefix, token) → the prefix one longer; exact, where hashes guess
    followers: defaultdict[int, Counter[int]] = defaultdict(Counter)
    for row in rows:
        prefix = 0
        for place, (token, label) in enumerate(zip(row["input_ids"], row["labels"], strict=True)):
            if place and label != IGNORED_LABEL:  # nothing stands before the first token, so it is not predicted
                followers[prefix][label] += 1
            prefix = nodes.setdefault((prefix, token), len(nodes) + 1)
    total = sum(count.total() for count in followers.values())
    return sum(map(_entropy_sum, followers.values())) / total if total else 0.0


def _entropy_sum(counts: Counter[int]) -> float:
    """Entropy (nats) of one distribution, times the number of its draws; 0 exactly where there is one outcome."""
    total = counts.total()
    return 0.0 if len(counts) == 1 else sum(count * math.log(total / count) for count in counts.values())


def loss_bound(start: float, floor: float) -> float:
    """What the loss must fall below, in nats a supervised token: the floor and a tenth of what lies between it and the
    start, at least 0.1 nats (a token then gets 90 % of the probability that it could)."""
    return floor + max(MARGIN_NATS, MARGIN_SHARE * (start - floor))


def last_answer(labels: Sequence[int]) -> tuple[int, int] | None:
    """Begin and end of the last unbroken stretch of trained tokens; None where there is none, or it has no prompt."""
    place = last_trained_stretch(labels)
    return place if place and place[0] else None


def contradicted_share(rows: Sequence[Row]) -> float:
    """Share of rows whose prompt (all before the last answer) also stands before another answer."""
    answers: defaultdict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for row in rows:
        if place := last_answer(row["labels"]):
            start, end = place
            answers[tuple(row["input_ids"][:start])].append(tuple(row["labels"][start:end]))
    contradicted = sum(len(given) for given in answers.values() if len(set(given)) > 1)
    return contradicted / len(rows) if rows else 0.0


def plain_row(row: Mapping[str, Any]) -> Row:
    """The row's token ids and labels as lists of int, whatever they were."""
    return {key: [int(each) for each in row[key]] for key in ("input_ids", "labels")}
