"""A sample longer than the limit in parts that fit: text by tokens, conversations by exchanges; no answer is cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.masks import Encoded, Encoder
from hf_recipes.data.reading.formats import Example


def split_text(encoded: Encoded, max_length: int) -> list[Encoded]:
    """Consecutive pieces of `max_length` tokens, the last with the end of the text.

    The last piece is never a single token, which nothing could predict: it takes one from the piece before it.
    """
    length = len(encoded.input_ids)
    borders = [*range(0, length, max_length), length]
    if borders[-1] - borders[-2] == 1 and len(borders) > 2:
        borders[-2] -= 1
    pieces = zip(np.split(encoded.input_ids, borders[1:-1]), np.split(encoded.labels, borders[1:-1]), strict=True)
    return [replace(encoded, input_ids=ids, labels=labels, answer_end=len(ids)) for ids, labels in pieces]


def split_conversation(example: Example, encoder: Encoder, max_length: int) -> list[Encoded]:
    """Parts of as many whole exchanges as fit, each behind the system turn, tools with it.

    An exchange is a question and all that follows up to the next one. Every learned answer is in one part; those of an
    exchange that does not fit are kept from its start as far as they do, the others are told as `lost_answers` on the
    first part. Exchanges with nothing to learn are context where there is room (else the part is ``shortened``).
    With ``assistant_only_loss`` off, the system turn is learned in every part.

    Returns:
        The parts in order; none when no answer fits.
    """
    example = replace(example, trained=encoder.learned_turns(example.trained))
    exchanges = _Exchanges(example, encoder, max_length)
    parts: list[Encoded] = []
    lost = position = 0
    while (first := exchanges.next_learned(position)) is not None:
        # The earliest start from which this exchange fits, then the latest end from there.
        start = _bisect(first, position, partial(exchanges.fit, end=first + 1))
        if start is None:
            part, left_out = exchanges.encode_beginning(first)
            lost += left_out
            position = first + 1
        else:
            end = _bisect(first + 1, exchanges.count, partial(exchanges.fit, start)) or first + 1
            part = exchanges.encode(start, end)
            part = replace(part, shortened=True) if part and start > position else part
            position = end
        parts += [part] if part else []
    return [replace(part, lost_answers=lost if index == 0 else 0) for index, part in enumerate(parts)]


class _Exchanges:
    """The exchanges of a conversation, numbered from 0, encoded on demand."""

    def __init__(self, example: Example, encoder: Encoder, max_length: int) -> None:
        self.example, self.encoder, self.max_length = example, encoder, max_length
        roles = [message["role"] for message in example.messages]
        self.system = int(roles[0] == "system")
        asked = [i for i in range(self.system + 1, len(roles)) if roles[i] == "user" and roles[i - 1] != "user"]
        self.borders = [self.system, *asked, len(roles)]
        self.count = len(self.borders) - 1
        self._encoded: dict[tuple[int, int], Encoded | None] = {}

    def next_learned(self, position: int) -> int | None:
        """The first exchange from `position` on with an answer to learn."""
        trained, borders = self.example.trained, self.borders
        return next((i for i in range(position, self.count) if any(trained[borders[i] : borders[i + 1]])), None)

    def encode(self, start: int, end: int) -> Encoded | None:
        """Exchanges from `start` to before `end` behind the system turn; None when their last answer is out of room."""
        return self._encode_turns(self.borders[start], self.borders[end])

    def fit(self, start: int, end: int) -> bool:
        """Whether `encode` gives a sample."""
        return self.encode(start, end) is not None

    def encode_beginning(self, exchange: int) -> tuple[Encoded | None, int]:
        """The beginning of an exchange up to the last learned answer that fits, and how many were left out."""
        begin, end = self.borders[exchange : exchange + 2]
        answers = [index for index in range(begin, end) if self.example.trained[index]]
        for left_out, answer in enumerate(reversed(answers)):
            if encoded := self._encode_turns(begin, answer + 1):
                return encoded, left_out
        return None, len(answers)

    def _encode_turns(self, begin: int, end: int) -> Encoded | None:
        if (begin, end) not in self._encoded:
            self._encoded[begin, end] = encode_within(
                _turns(self.example, self.system, begin, end), self.encoder, self.max_length
            )
        return self._encoded[begin, end]


def _turns(example: Example, system: int, begin: int, end: int) -> Example:
    return replace(
        example,
        messages=example.messages[:system] + example.messages[begin:end],
        trained=example.trained[:system] + example.trained[begin:end],
    )


def encode_within(example: Example, encoder: Encoder, max_length: int) -> Encoded | None:
    """The sample up to `max_length` tokens, or None when an answer would be cut or the template refuses."""
    (encoded,) = encoder.encode([example])
    if isinstance(encoded, BadRow) or encoded.answer_end > max_length:
        return None
    return cut(encoded, max_length)


def cut(encoded: Encoded, length: int) -> Encoded:
    """The sample's first `length` tokens."""
    return replace(encoded, input_ids=encoded.input_ids[:length], labels=encoded.labels[:length])


def _bisect(near: int, far: int, fits: Callable[[int], bool]) -> int | None:
    """The number farthest from `near` towards `far` that fits, if `near` does; what fits is taken to fit nearer too."""
    if not fits(near):
        return None
    step = 1 if far >= near else -1
    low, high = 0, abs(far - near)  # `low` steps fit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(near + step * middle):
            low = middle
        else:
            high = middle - 1
    return near + step * low
