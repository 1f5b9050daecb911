"""Samples longer than the limit: an answer is learned whole, with its end, or it is dropped and counted."""

from __future__ import annotations

from dataclasses import replace

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.masks import Encoded, Encoder
from hf_recipes.data.masking.parts import cut, encode_within, split_conversation, split_text
from hf_recipes.data.reading.formats import Example
from hf_recipes.data.reading.turns import Message

OVERLONG = ("drop", "shorten_prompt", "split")
LONGER_THAN = "longer than max_length"
NOTHING_LEARNED = "no token to learn"
ATTEMPTS = 4


def too_long(max_length: int) -> str:
    """The drop reason of a sample whose answer would be cut."""
    return f"{LONGER_THAN} {max_length}"


def is_length_fault(reason: str) -> bool:
    """Whether a drop reason would go away with a larger max_length."""
    return reason.startswith(LONGER_THAN)


def fit_length(
    example: Example, encoded: Encoded, encoder: Encoder, max_length: int | None, overlong: str
) -> list[Encoded]:
    """Return the sample within `max_length` tokens, unchanged where it fits; several only under ``"split"``.

    What follows the last learned token of a conversation is cut (``truncated``). What else is too long goes by
    `overlong`:

    - ``"drop"``: a conversation whose answer would be cut is a `BadRow`; plain text is cut (``truncated``).
    - ``"shorten_prompt"``: as ``"drop"``, but a conversation's oldest turns go first, then the beginning of the last
      question (``shortened``); the system turn stays while there is room for it. Answers that go with their turns are
      counted in ``lost_answers``.
    - ``"split"``: plain text becomes consecutive pieces without loss, conversations parts of whole exchanges, each
      behind the system turn; answers that do not fit even so are counted in ``lost_answers`` of the first part.

    Raises:
        BadRow: nothing is left to be learned, or no answer fits.
    """
    parts = [encoded]
    if max_length is not None and len(encoded.input_ids) > max_length:
        parts = _within(example, encoded, encoder, max_length, overlong)
    # The first token is never predicted.
    if not (parts := [part for part in parts if (part.labels[1:] != IGNORED_LABEL).any()]):
        raise BadRow(NOTHING_LEARNED)
    return parts


def _within(example: Example, encoded: Encoded, encoder: Encoder, max_length: int, overlong: str) -> list[Encoded]:
    if overlong == "split" and example.text is not None:
        return split_text(encoded, max_length)
    if example.text is not None or encoded.answer_end <= max_length:
        return [replace(cut(encoded, max_length), truncated=True)]
    if overlong == "shorten_prompt":
        return [shorten_prompt(example, encoder, max_length)]
    if overlong == "split" and (parts := split_conversation(example, encoder, max_length)):
        return parts
    raise BadRow(too_long(max_length), f"{len(encoded.input_ids)} tokens")


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
            fitted = encode_within(candidate, encoder, max_length)
            if fitted is None and question == questions[-1]:
                fitted = _cut_question(candidate, kept_system, encoder, max_length)
            if fitted is not None:
                lost = sum(encoder.learned_turns(example.trained)) - sum(encoder.learned_turns(candidate.trained))
                return replace(fitted, shortened=True, lost_answers=lost)
    raise BadRow(too_long(max_length), "the answer alone does not fit")


def _from_turn(example: Example, index: int, kept_system: int) -> Example:
    return replace(
        example,
        messages=example.messages[:kept_system] + example.messages[index:],
        trained=example.trained[:kept_system] + example.trained[index:],
    )


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
        (encoded,) = encoder.encode([shorter])
        if isinstance(encoded, BadRow):
            raise encoded
        if encoded.answer_end <= max_length:
            return cut(encoded, max_length)
        if removed == len(offsets):  # nothing is left of the question
            return None
        removed = min(removed + encoded.answer_end - max_length, len(offsets))
    return None


def _with_content(example: Example, index: int, content: str) -> Example:
    message: Message = {**example.messages[index], "content": content}
    return replace(example, messages=[*example.messages[:index], message, *example.messages[index + 1 :]])
