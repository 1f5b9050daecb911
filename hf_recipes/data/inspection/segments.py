"""Samples as people can check them: the text the model sees, cut where what is learned begins and ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.core.printable import printable

GREEN, RESET = "\033[32m", "\033[0m"


@dataclass(frozen=True)
class Segment:
    """A stretch of a sample that is learned, or is not."""

    text: str
    learned: bool


def segments(input_ids: Sequence[int], labels: Sequence[int], tokenizer: Any) -> list[Segment]:
    """The sample as text, special tokens included, in stretches.

    Tokens and labels are decoded as they are, so a label that differs from its token is shown as what is learned.
    """
    stretches = []
    for learned, pairs in groupby(zip(input_ids, labels, strict=True), key=lambda pair: pair[1] != IGNORED_LABEL):
        ids = [int(label if learned else token) for token, label in pairs]
        text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        stretches.append(Segment(text, learned))
    return stretches


def as_text(stretches: Sequence[Segment], color: bool = False) -> str:
    """Stretches for a screen: the learned ones in green, or between « and » without colour."""
    before, after = (GREEN, RESET) if color else ("«", "»")
    shown = [(stretch.learned, printable(stretch.text)) for stretch in stretches]
    return "".join(f"{before}{text}{after}" if learned else text for learned, text in shown)


def render_sample(input_ids: Sequence[int], labels: Sequence[int], tokenizer: Any, color: bool = False) -> str:
    """One sample for a screen; see `segments` and `as_text`."""
    return as_text(segments(input_ids, labels, tokenizer), color)
