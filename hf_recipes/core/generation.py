"""Greedy answers in batches, timed. Prompts and answers are token ids at the core, text at the edge."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Generations:
    """Answers in the order of their prompts.

    ``new_tokens`` counts generated tokens with the end token, without padding; ``seconds`` is the wall time of
    generation alone; ``cut`` is how many answers met the token limit before an end token.
    """

    answers: list[str]
    new_tokens: int
    seconds: float
    cut: int

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds

    @property
    def seconds_per_answer(self) -> float:
        return self.seconds / len(self.answers)


def generate_answers(
    model: Any, tokenizer: Any, conversations: Sequence[list[dict[str, Any]]], *, max_new_tokens: int, batch_size: int
) -> Generations:
    """Answer each conversation (messages up to the turn to be written) greedily.

    Prompts are sorted by length, longest first, so that batches pad little and memory runs out at once if at all.
    The model's own sampling settings and penalties are set aside: greedy means the likeliest token.

    Args:
        model: a causal LM; evaluated in its dtype on its device. Its training mode is put back afterwards.
        tokenizer: its chat template renders the prompts.
        conversations: at least one.
        max_new_tokens: limit of an answer.
        batch_size: prompts generated at once.
    """
    prompts = [render_prompt(tokenizer, messages) for messages in conversations]
    return continue_prompts(model, tokenizer, prompts, max_new_tokens=max_new_tokens, batch_size=batch_size)


def continue_prompts(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, batch_size: int
) -> Generations:
    """`generate_answers` for prompts that are token ids already."""
    ends = end_token_ids(model, tokenizer)
    pad = pad_token_id(tokenizer, ends)
    settings = _greedy(max_new_tokens, ends, pad)
    tokens: list[list[int]] = [[] for _ in prompts]
    was_training = model.training
    model.eval()
    started = time.perf_counter()
    try:
        for batch in length_batches([len(prompt) for prompt in prompts], batch_size):
            for index, row in zip(batch, _generate(model, [prompts[i] for i in batch], pad, settings), strict=True):
                tokens[index] = until_end(row, ends)
    finally:
        model.train(was_training)
    seconds = time.perf_counter() - started
    return Generations(
        answers=[tokenizer.decode(row, skip_special_tokens=True) for row in tokens],
        new_tokens=sum(map(len, tokens)),
        seconds=seconds,
        cut=sum(not row or row[-1] not in ends for row in tokens),
    )


def render_prompt(tokenizer: Any, messages: list[dict[str, Any]]) -> list[int]:
    """Token ids of `messages` by the chat template, up to where the assistant begins to write."""
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])


def end_token_ids(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer: the generation config's and the tokenizer's, which differ for some families."""
    configured = model.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured]
    return sorted({token for token in [*ids, tokenizer.eos_token_id] if token is not None})


def pad_token_id(tokenizer: Any, ends: Sequence[int]) -> int:
    """A token to fill rows with; any does, since padding is masked by position."""
    return next((token for token in (tokenizer.pad_token_id, *ends) if token is not None), 0)


def length_batches(lengths: Sequence[int], batch_size: int) -> list[list[int]]:
    """Indices in batches of `batch_size`, longest first."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def left_pad(rows: Sequence[Sequence[int]], pad: int) -> tuple[list[list[int]], list[list[int]]]:
    """Rows filled from the left to one length, and the mask (1 = real) by position, whatever the pad token is."""
    length = max(map(len, rows))
    ids = [[pad] * (length - len(row)) + list(row) for row in rows]
    mask = [[0] * (length - len(row)) + [1] * len(row) for row in rows]
    return ids, mask


def until_end(row: Sequence[int], ends: Sequence[int]) -> list[int]:
    """The tokens up to and with the first end token; what follows is a batch's filling."""
    for position, token in enumerate(row):
        if token in ends:
            return list(row[: position + 1])
    return list(row)


def _generate(model: Any, prompts: Sequence[Sequence[int]], pad: int, settings: Any) -> list[list[int]]:
    import torch

    ids, mask = (torch.tensor(rows, device=model.device) for rows in left_pad(prompts, pad))
    with torch.inference_mode():
        output = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
    return output[:, ids.shape[1] :].tolist()


def _greedy(max_new_tokens: int, ends: list[int], pad: int) -> Any:
    """`generate` fills what is None from the model's own config, so everything that would bend greediness is named."""
    from transformers import GenerationConfig

    return GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        num_beams=1,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,  # training with checkpointing switches it off in the config
        eos_token_id=ends or None,
        pad_token_id=pad,
    )
