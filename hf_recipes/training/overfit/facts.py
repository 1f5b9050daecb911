"""What the rows say by themselves, before any model has seen them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.training.overfit.floor import Row, contradicted_share, entropy_floor, last_answer

# Control tokens as chat templates write them: <|im_start|>, <|eot_id|>, <start_of_turn>, <｜User｜>. [INST] and its
# like are plain text in templates that are right.
_MARKER = re.compile(r"<\|[^|<>\s]{1,40}\|>|<(?:start|end)_of_turn>|<｜[^｜<>]{1,40}｜>")
_MARKED_ROWS = 0.5


@dataclass(frozen=True)
class DataFacts:
    """Counts over the rows drawn.

    Attributes:
        rows: how many there are.
        supervised_share: trained tokens among all.
        untrained_rows: rows without a trained token.
        commonest_share: share of all input tokens that are one and the same token.
        aligned: share of labels that are the token standing one place before, at, and one place after them.
        floor: `entropy_floor`, nats a supervised token.
        contradicted: share of rows whose prompt also has another answer.
        answer_tokens: mean length of the last answer.
        broken_markers: control tokens, as text, that the vocabulary does not have and half of the rows contain.
    """

    rows: int
    supervised_share: float
    untrained_rows: int
    commonest_share: float
    aligned: tuple[float, float, float]
    floor: float
    contradicted: float
    answer_tokens: float
    broken_markers: tuple[str, ...] = ()


def data_facts(rows: Sequence[Row], broken: tuple[str, ...] = ()) -> DataFacts:
    """Count what `DataFacts` lists; `broken` comes from `broken_markers`."""
    tokens = Counter(token for row in rows for token in row["input_ids"])
    labels = [(row, place) for row in rows for place in _trained_places(row)]
    answers = [place for row in rows if (place := last_answer(row["labels"]))]
    total = max(1, tokens.total())
    return DataFacts(
        rows=len(rows),
        supervised_share=len(labels) / total,
        untrained_rows=sum(not _trained_places(row) for row in rows),
        commonest_share=max(tokens.values(), default=0) / total,
        aligned=(_aligned(labels, -1), _aligned(labels, 0), _aligned(labels, 1)),
        floor=entropy_floor(rows),
        contradicted=contradicted_share(rows),
        answer_tokens=sum(end - start for start, end in answers) / len(answers) if answers else 0.0,
        broken_markers=broken,
    )


def _trained_places(row: Row) -> list[int]:
    return [place for place, label in enumerate(row["labels"]) if place and label != IGNORED_LABEL]


def _aligned(labels: Sequence[tuple[Row, int]], offset: int) -> float:
    """Share of labels that equal the token `offset` places on, among those with such a token."""
    inside = [(row, place) for row, place in labels if 0 <= place + offset < len(row["input_ids"])]
    equal = sum(row["labels"][place] == row["input_ids"][place + offset] for row, place in inside)
    return equal / len(inside) if inside else 0.0


def broken_markers(
    rows: Sequence[Row], decode: Callable[[Sequence[int]], str], vocabulary: Collection[str]
) -> tuple[str, ...]:
    """Control tokens that stand in at least half of the rows as plain text: the template is another model's.

    Args:
        rows: Token rows.
        decode: Token ids → text, special tokens kept.
        vocabulary: The tokenizer's tokens.
    """
    seen = Counter(marker for row in rows for marker in set(_MARKER.findall(decode(row["input_ids"]))))
    return tuple(
        sorted(
            marker for marker, count in seen.items() if marker not in vocabulary and count >= _MARKED_ROWS * len(rows)
        )
    )
