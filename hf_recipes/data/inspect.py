"""Samples as people can check them: the text the model sees, with what is learned marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from hf_recipes.data.masks import IGNORED

GREEN, RESET = "\033[32m", "\033[0m"


def render_sample(input_ids: Sequence[int], labels: Sequence[int], tokenizer: Any, color: bool = False) -> str:
    """The tokens as text, special tokens included; learned parts in green, or between « and » without colour.

    Tokens and labels are decoded as they are, so a label that differs from its token is shown as what is learned.
    """
    before, after = (GREEN, RESET) if color else ("«", "»")
    pairs = list(zip(input_ids, labels, strict=True))
    parts = []
    for learned, group in groupby(pairs, key=lambda pair: pair[1] != IGNORED):
        ids = [label if learned else token for token, label in group]
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        parts.append(f"{before}{text}{after}" if learned else text)
    return "".join(parts)


def render_batches(
    dataset: Any, tokenizer: Any, batches: int = 5, batch_size: int = 4, color: bool = False
) -> Iterable[str]:
    """Yield the first samples of a prepared dataset, batch by batch, in the order it holds them.

    Each has a heading with batch, origin, number of tokens and how many of them are learned.
    """
    for index in range(min(batches * batch_size, len(dataset))):
        row = dataset[index]
        learned = sum(label != IGNORED for label in row["labels"])
        heading = f"batch {index // batch_size + 1}, {row.get('row_id', index)}"
        yield f"── {heading}: {len(row['input_ids'])} tokens, {learned} learned"
        yield render_sample(row["input_ids"], row["labels"], tokenizer, color)
