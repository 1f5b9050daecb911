"""Text → token ids and labels: only what the assistant says is learned, its end-of-turn token included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hf_recipes.core.errors import UserError
from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.masking.fast_spans import Span
from hf_recipes.data.masking.rendering import Tools
from hf_recipes.data.masking.spans import AnswerFinder
from hf_recipes.data.masking.templates import ChatTemplate
from hf_recipes.data.reading.formats import Example
from hf_recipes.data.reading.turns import Message

HALF_CHARACTER = "a text holds half of a surrogate pair, which is no character"


@dataclass(frozen=True, eq=False)
class Encoded:
    """One sample as tokens.

    `input_ids` and `labels` are int32 arrays of one length: a label is the id itself where it is learned, else -100.
    `answer_end` is the number of tokens up to the end of the last learned one, or of the last turn to be learned.
    `lost_answers` is the number of answers to be learned that were left out of the row, told on its first part only.
    """

    input_ids: np.ndarray
    labels: np.ndarray
    answer_end: int
    truncated: bool = False
    shortened: bool = False
    lost_answers: int = 0

    @property
    def supervised_tokens(self) -> int:
        """Tokens that are learned."""
        return int(np.count_nonzero(self.labels != IGNORED_LABEL))


@dataclass
class Encoder:
    """Turns examples into tokens with one tokenizer. Can be pickled, with what it has found out about the template.

    Args:
        tokenizer: a fast tokenizer (it must give offsets); a chat template is needed only for conversations.
        assistant_only_loss: learn the assistant's turns only; otherwise every token but turns set to weight 0.
        mask_history: of the assistant's turns to be learned, learn the last only.

    Raises:
        UserError: the tokenizer gives no offsets, has no end-of-sequence token for text, or doubles the BOS token;
            `mask_history` without `assistant_only_loss`.
    """

    tokenizer: Any
    assistant_only_loss: bool = True
    mask_history: bool = False
    _checked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise UserError(
                f"{type(self.tokenizer).__name__} gives no character offsets, which answer masks need: "
                "use a fast tokenizer (one with a tokenizer.json)."
            )
        if self.mask_history and not self.assistant_only_loss:
            raise UserError("mask_history learns the last answer only and so needs assistant_only_loss: true.")

    @cached_property
    def template(self) -> ChatTemplate:
        """The tokenizer's chat template."""
        return ChatTemplate(self.tokenizer)

    @cached_property
    def _finder(self) -> AnswerFinder:
        return AnswerFinder(self.template)

    def learned_turns(self, trained: Sequence[bool]) -> list[bool]:
        """Which turns are learned: those flagged, or under `mask_history` the last flagged one."""
        flags = list(trained)
        if self.mask_history and True in flags:
            last = len(flags) - 1 - flags[::-1].index(True)
            flags = [index == last for index in range(len(flags))]
        return flags

    def encode(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        """Encode examples in one tokenizer call for conversations and one for texts; a fault takes its row's place.

        A conversation is a `BadRow` also when one of its texts holds a control token (`ChatTemplate.fit`).
        """
        results: list[Encoded | BadRow | None] = [None] * len(examples)
        texts = {index: example.text for index, example in enumerate(examples) if example.text is not None}
        whole = {index: text for index, text in texts.items() if is_whole(text)}
        for index, encoded in zip(whole, self._encode_texts(list(whole.values())), strict=True):
            results[index] = encoded
        for index in texts.keys() - whole.keys():
            results[index] = BadRow(HALF_CHARACTER)
        chats = [index for index, example in enumerate(examples) if example.text is None]
        for index, result in zip(chats, self._encode_chats([examples[index] for index in chats]), strict=True):
            results[index] = result
        return [result for result in results if result is not None]

    def _encode_chats(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        results: list[Encoded | BadRow | None] = [None] * len(examples)
        fitted: list[tuple[int, list[Message], Tools, list[bool]]] = []
        for index, example in enumerate(examples):
            try:
                fitted.append((index, *self.template.fit(example)))
            except BadRow as fault:
                results[index] = fault
        rows = []
        found = self._finder.render([(messages, tools) for _, messages, tools, _ in fitted]) if fitted else []
        for (index, messages, _, trained), result in zip(fitted, found, strict=True):
            if isinstance(result, BadRow):
                results[index] = result
            elif not is_whole(result[0]):
                results[index] = BadRow(HALF_CHARACTER)
            else:
                flags = self.learned_turns(trained)
                rows.append((index, *result, [f for f, m in zip(flags, messages, strict=True) if _is_answer(m)]))
        for (index, *_), encoded in zip(rows, self._encode_rendered([row[1:] for row in rows]), strict=True):
            results[index] = encoded
        return [result for result in results if result is not None]

    def _encode_rendered(self, rows: Sequence[tuple[str, list[Span], list[bool]]]) -> list[Encoded]:
        """Rendered conversations, the ranges of their answers and which of these are learned, as tokens."""
        if not rows:
            return []
        batch = self._tokenize([text for text, _, _ in rows], add_special_tokens=False)
        self._check_bos(batch["input_ids"][0])
        encoded = []
        for ids, encoding, (text, spans, flags) in zip(batch["input_ids"], batch.encodings, rows, strict=True):
            input_ids = np.array(ids, dtype=np.int32)
            labels = np.full_like(input_ids, IGNORED_LABEL) if self.assistant_only_loss else input_ids.copy()
            answer_end = 0
            for span, flag in zip(spans, flags, strict=True):
                first, end = token_range(encoding, text, span)
                if flag:
                    labels[first:end] = input_ids[first:end]
                    answer_end = end
                else:
                    labels[first:end] = IGNORED_LABEL
            encoded.append(Encoded(input_ids, labels, answer_end))
        return encoded

    def _tokenize(self, texts: Sequence[str], add_special_tokens: bool) -> Any:
        return self.tokenizer(
            list(texts),
            add_special_tokens=add_special_tokens,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )

    def _check_bos(self, ids: Sequence[int]) -> None:
        bos = self.tokenizer.bos_token_id
        if not self._checked and bos is not None and list(ids[:2]) == [bos, bos]:
            raise UserError(
                f"The chat template begins with two BOS tokens ({self.tokenizer.bos_token!r}): remove one from it."
            )
        self._checked = True

    def _encode_texts(self, texts: Sequence[str]) -> list[Encoded]:
        """Plain texts as the tokenizer writes them, with one end-of-sequence token; every token is learned."""
        if not texts:
            return []
        eos = self.tokenizer.eos_token_id
        if eos is None:
            raise UserError("The tokenizer has no eos_token to end plain texts with: set tokenizer.eos_token.")
        encoded = []
        for ids in self._tokenize(texts, add_special_tokens=True)["input_ids"]:
            whole = np.array(ids if ids and ids[-1] == eos else [*ids, eos], dtype=np.int32)
            encoded.append(Encoded(whole, whole.copy(), len(whole)))
        return encoded


def is_whole(text: str) -> bool:
    """Whether the text is made of whole characters; JSON may hold half of a surrogate pair, which has no encoding."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_answer(message: Message) -> bool:
    return bool(message["role"] == "assistant")


def token_range(encoding: Any, text: str, span: Span) -> tuple[int, int]:
    """The tokens, first and one past the last, that lie in a character range of `text`.

    A token that begins before the range and reaches into it counts only if it brings more than white space into it: the
    first word of an answer does, glued to a space before it; a line break glued to one before the answer does not.
    Some tokenizers leave white space out of their offsets, so each token is taken to begin where the last one ended.

    Args:
        encoding: a `tokenizers.Encoding` of the whole text.
        text: the text.
        span: a range that holds more than white space.
    """
    start, end = span
    inside = (encoding.char_to_token(position) for position in range(start, end))
    first = next((token for token in inside if token is not None), 0)
    while first > 0 and encoding.token_to_chars(first - 1)[1] > start and _belongs(encoding, text, first - 1, start):
        first -= 1
    if not _belongs(encoding, text, first, start):
        first += 1
    inside = (encoding.char_to_token(position) for position in range(end - 1, start - 1, -1))
    last = next((token for token in inside if token is not None), first - 1)
    while last + 1 < len(encoding) and encoding.token_to_chars(last + 1)[0] < end:
        last += 1
    return first, last + 1


def _belongs(encoding: Any, text: str, token: int, start: int) -> bool:
    """Whether a token that ends behind `start` begins there or later, or brings more than white space behind it."""
    begin, end = encoding.token_to_chars(token)
    begin = min(begin, encoding.token_to_chars(token - 1)[1]) if token else 0
    return begin >= start or bool(text[start:end].strip())
