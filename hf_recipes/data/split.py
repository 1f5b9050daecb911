"""Train and eval parts of each source, taken before anything is mixed. Pure."""

from __future__ import annotations

import hashlib
import random
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

from hf_recipes.data.formats import Example


def duplicate_key(example: Example) -> str:
    """A fingerprint that two samples share when their text is the same but for white space and Unicode composition."""
    if example.text is not None:
        parts = [example.text]
    else:
        parts = [
            f"{message['role']}: {message['content']} {message.get('tool_calls', '')}" for message in example.messages
        ]
    text = " ".join(" ".join(parts).split())
    return hashlib.blake2b(unicodedata.normalize("NFC", text).encode(), digest_size=16).hexdigest()


@dataclass
class Splitter:
    """Splits one source after another, remembering on which side each text lies.

    Args:
        eval_share: share of each source's rows for evaluation, 0 for none.
        seed: another seed, another split; the same seed gives the same split of the same rows.
    """

    eval_share: float
    seed: int
    sides: dict[str, bool] = field(default_factory=dict)

    def split(self, keys: Sequence[str]) -> tuple[list[int], list[int]]:
        """Row numbers for training and for evaluation, both ascending.

        Rows of equal key lie on one side, across sources too. The eval part is the share to the nearest row (at least
        one) unless a group of equal rows does not fit in, or another source has already decided for some.
        """
        groups: dict[str, list[int]] = {}
        for index, key in enumerate(keys):
            groups.setdefault(key, []).append(index)
        new = [key for key in groups if key not in self.sides]
        random.Random(self.seed).shuffle(new)
        chosen = sum(len(groups[key]) for key in groups if self.sides.get(key))
        wanted = max(1, round(self.eval_share * len(keys))) if self.eval_share > 0 and len(groups) > 1 else 0
        for key in new:
            self.sides[key] = chosen + len(groups[key]) <= min(wanted, len(keys) - 1)
            chosen += len(groups[key]) if self.sides[key] else 0
        evaluated = [index for index, key in enumerate(keys) if self.sides[key]]
        return [index for index, key in enumerate(keys) if not self.sides[key]], evaluated
