"""Samples longer than the limit: an answer is learned whole, with its end, or the row is dropped and counted."""

from __future__ import annotations

from dataclasses import replace

from hf_recipes.data.formats import Example
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masks import Encoded, Encoder
from hf_recipes.data.turns import Message

OVERLONG = ("drop", "shorten_prompt")
LONGER_THAN = "longer than max_length"
NOTHING_LEARNED = "no token to learn"
ATTEMPTS = 4


def too_long(max_length: int) -> str:
    """The drop reason of a sample whose answer would be cut."""
    return f"{LONGER_THAN} {max_length}"


def is_length_fault(reason: str) -> bool:
    """Whether a drop reason would go away with a larger max_length."""
    return reason.startswith(LONGER_THAN)


def fit_length(example: Example, encoded: Encoded, encoder: Encoder, max_length: int | None, overlong: str) -> Encoded:
    """Return the sample within `max_length` tokens, unchanged where it fits.

    Plain text, and what follows the last learned token of a conversation, is cut (``truncated``). A conversation whose
    answer would be cut is a `BadRow` under ``overlong="drop"``; under ``"shorten_prompt"`` its oldest turns go first,
    then the beginning of the last question (``shortened``); the system turn stays while there is room for it.

    Raises:
        BadRow: nothing is left to be learned, or the answer does not fit.
    """
    if max_length is not None and len(encoded.input_ids) > max_length:
        if example.text is not None or encoded.answer_end <= max_length:
            encoded = replace(
                encoded,
                input_ids=encoded.input_ids[:max_length],
                labels=encoded.labels[:max_length],
                truncated=True,
            )
        elif overlong == "shorten_prompt":
            encoded = shorten_prompt(example, encoder, max_length)
        else:
            raise BadRow(too_long(max_length), f"{len(encoded.input_ids)} tokens")
    if not any(label >= 0 for label in encoded.labels[1:]):  # the first token is never predicted
        raise BadRow(NOTHING_LEARNED)
    return encoded


def shorten_prompt(example: Example, encoder: Encoder, max_length: int) -> Encoded:
    """Leave out what comes first in the prompt until the conversation fits; the last exchange stays, answer whole.

    Raises:
        BadRow: the last answer does not fit even with an empty question.
    """
    system = 1 if example.messages[0]["role"] == "system" else 0
    last_answer = max(index for index, flag in enumerate(example.trained) if flag)
    questions = [index for index, message in enumerate(example.messages[:last_answer]) if message["role"] == "user"]
    for kept_system in (system, 0) if system else (0,):
        for question in questions:
            candidate = _from_turn(example, question, kept_system)
            fitted = _encode_within(candidate, encoder, max_length)
            if fitted is None and question == questions[-1]:
                fitted = _cut_question(candidate, kept_system, encoder, max_length)
            if fitted is not None:
                return replace(fitted, shortened=True)
    raise BadRow(too_long(max_length), "the answer alone does not fit")


def _from_turn(example: Example, index: int, kept_system: int) -> Example:
    return replace(
        example,
        messages=example.messages[:kept_system] + example.messages[index:],
        trained=example.trained[:kept_system] + example.trained[index:],
    )


def _encode_within(example: Example, encoder: Encoder, max_length: int) -> Encoded | None:
    encoded = _encode_one(example, encoder)
    if encoded.answer_end > max_length:
        return None
    return replace(encoded, input_ids=encoded.input_ids[:max_length], labels=encoded.labels[:max_length])


def _encode_one(example: Example, encoder: Encoder) -> Encoded:
    (encoded,) = encoder.encode([example])
    if isinstance(encoded, BadRow):
        raise encoded
    return encoded


def _cut_question(example: Example, question: int, encoder: Encoder, max_length: int) -> Encoded | None:
    """Cut the message at `question` from its start, token by token, until the sample fits; None when it never does."""
    message = example.messages[question]
    content = message["content"]
    offsets = encoder.tokenizer(content, add_special_tokens=False, return_offsets_mapping=True, verbose=False)[
        "offset_mapping"
    ]
    removed = 0
    for _ in range(ATTEMPTS):  # cutting text can change how the rest is tokenised by a few tokens
        shorter = _with_content(example, question, content[offsets[removed - 1][1] :] if removed else content)
        encoded = _encode_one(shorter, encoder)
        if encoded.answer_end <= max_length:
            return replace(encoded, input_ids=encoded.input_ids[:max_length], labels=encoded.labels[:max_length])
        removed += encoded.answer_end - max_length
        if removed >= len(offsets):
            return None
    return None


def _with_content(example: Example, index: int, content: str) -> Example:
    message: Message = {**example.messages[index], "content": content}
    return replace(example, messages=[*example.messages[:index], message, *example.messages[index + 1 :]])
