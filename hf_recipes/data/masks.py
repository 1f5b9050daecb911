"""Text → token ids and labels: only what the assistant says is learned, its end-of-turn token included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.data.formats import Example
from hf_recipes.data.ledger import BadRow
from hf_recipes.data.spans import Span, render_with_spans
from hf_recipes.data.templates import ChatTemplate

IGNORED = -100  # the label PyTorch's cross entropy passes over


@dataclass(frozen=True)
class Encoded:
    """One sample as tokens. `labels` runs along `input_ids`: the id itself where it is learned, else -100.

    `answer_end` is the number of tokens up to the end of the last learned one, or of the last turn to be learned.
    """

    input_ids: list[int]
    labels: list[int]
    answer_end: int
    truncated: bool = False
    shortened: bool = False

    @property
    def supervised_tokens(self) -> int:
        """Tokens that are learned."""
        return sum(label != IGNORED for label in self.labels)


@dataclass
class Encoder:
    """Turns examples into tokens with one tokenizer.

    Args:
        tokenizer: a fast tokenizer (it must give offsets); a chat template is needed only for conversations.
        assistant_only_loss: learn the assistant's turns only; otherwise every token but turns set to weight 0.

    Raises:
        UserError: the tokenizer gives no offsets, has no end-of-sequence token for text, or doubles the BOS token.
    """

    tokenizer: Any
    assistant_only_loss: bool = True
    _checked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if not self.tokenizer.is_fast:
            raise UserError(
                f"{type(self.tokenizer).__name__} gives no character offsets, which answer masks need: "
                "use a fast tokenizer (one with a tokenizer.json)."
            )

    @cached_property
    def template(self) -> ChatTemplate:
        """The tokenizer's chat template."""
        return ChatTemplate(self.tokenizer)

    def encode(self, examples: Sequence[Example]) -> list[Encoded | BadRow]:
        """Encode examples in one tokenizer call for conversations and one for texts; a fault takes its row's place."""
        results: list[Encoded | BadRow | None] = [None] * len(examples)
        chats: list[tuple[int, str, list[Span], list[Span]]] = []
        texts = [(index, example.text) for index, example in enumerate(examples) if example.text is not None]
        for index, example in enumerate(examples):
            if example.text is None:
                try:
                    chats.append((index, *self._render(example)))
                except BadRow as fault:
                    results[index] = fault
        for index, encoded in zip(
            (index for index, _ in texts), self._encode_texts([t for _, t in texts]), strict=True
        ):
            results[index] = encoded
        for (index, *_), encoded in zip(chats, self._encode_chats(chats), strict=True):
            results[index] = encoded
        return [result for result in results if result is not None]

    def _render(self, example: Example) -> tuple[str, list[Span], list[Span]]:
        """The conversation as text, the ranges to be learned, and the ranges of turns set to weight 0."""
        messages, tools, trained = self.template.fit(example)
        is_answer = [message["role"] == "assistant" for message in messages]
        text, every = render_with_spans(self.template, messages, tools, is_answer)
        flags = [flag for flag, answer in zip(trained, is_answer, strict=True) if answer]
        learned = [span for span, flag in zip(every, flags, strict=True) if flag]
        return text, learned, [span for span, flag in zip(every, flags, strict=True) if not flag]

    def _tokenize(self, texts: Sequence[str], add_special_tokens: bool) -> Any:
        return self.tokenizer(
            list(texts),
            add_special_tokens=add_special_tokens,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )

    def _encode_chats(self, chats: Sequence[tuple[int, str, list[Span], list[Span]]]) -> list[Encoded]:
        if not chats:
            return []
        batch = self._tokenize([text for _, text, _, _ in chats], add_special_tokens=False)
        self._check_bos(batch["input_ids"][0])
        encoded = []
        for ids, offsets, (_, text, learned, unlearned) in zip(
            batch["input_ids"], batch["offset_mapping"], chats, strict=True
        ):
            flags = tokens_inside(offsets, text, learned)
            answer_end = max((position + 1 for position, flag in enumerate(flags) if flag), default=0)
            if not self.assistant_only_loss:
                flags = [not flag for flag in tokens_inside(offsets, text, unlearned)]
            labels = [token if flag else IGNORED for token, flag in zip(ids, flags, strict=True)]
            encoded.append(Encoded(ids, labels, answer_end))
        return encoded

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
            whole = ids if ids and ids[-1] == eos else [*ids, eos]
            encoded.append(Encoded(whole, list(whole), len(whole)))
        return encoded


def tokens_inside(offsets: Sequence[Span], text: str, spans: Sequence[Span]) -> list[bool]:
    """Which tokens lie in one of the ascending character ranges `spans` of `text`.

    A token that begins before a range and reaches into it counts only if it brings more than white space into it: the
    first word of an answer does, glued to a space before it; a line break glued to one before the answer does not.
    Some tokenizers leave white space out of their offsets, so each token is taken to begin where the last one ended.
    """
    flags = []
    position, done = 0, 0
    for start, end in offsets:
        begin = min(start, done)
        if end > done:
            done = end
        while position < len(spans) and spans[position][1] <= begin:
            position += 1
        if position == len(spans) or end <= spans[position][0]:
            flags.append(False)
            continue
        first = spans[position][0]
        flags.append(begin >= first or bool(text[first:end].strip()))
    return flags
