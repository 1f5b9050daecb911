"""How long one person waits: the first token of an answer, and each token after it, one row at a time."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.generation import end_token_ids, pad_token_id

ROWS = 3
TOKENS = 8  # after the first


@dataclass(frozen=True)
class Latency:
    """Medians, in milliseconds: over `rows` prompts to the first token, and over all tokens after it."""

    first_ms: float
    token_ms: float
    rows: int


def measure_latency(model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]]) -> Latency:
    """Time `ROWS` of the prompts, spread evenly, after one that warms up; each answer has exactly 1 + `TOKENS` tokens.

    Args:
        model: a causal LM on its device, with nothing else running there.
        prompts: token ids; at least one.
    """
    every = max(1, len(prompts) // ROWS)
    chosen = list(prompts[::every])[:ROWS]
    was_training = model.training
    model.eval()
    try:
        _token_times(model, tokenizer, chosen[0])
        timed = [_token_times(model, tokenizer, prompt) for prompt in chosen]
    finally:
        model.train(was_training)
    steps = [later - earlier for times in timed for earlier, later in itertools.pairwise(times)]
    first = statistics.median(times[0] for times in timed)
    return Latency(1000 * first, 1000 * statistics.median(steps), len(chosen))


class _Clock:
    """A streamer of `generate`: the prompt comes first, then each token when it is known."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        value.cpu()  # a GPU is at work until it must hand over the token
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


def _token_times(model: Any, tokenizer: Any, prompt: Sequence[int]) -> list[float]:
    """Seconds from the call to each token."""
    import torch
    from transformers import GenerationConfig

    settings = GenerationConfig(
        max_new_tokens=1 + TOKENS,
        min_new_tokens=1 + TOKENS,
        do_sample=False,
        num_beams=1,
        use_cache=True,
        pad_token_id=pad_token_id(tokenizer, end_token_ids(model, tokenizer)),
    )
    clock = _Clock()
    ids = torch.tensor([list(prompt)], device=model.device)
    started = time.perf_counter()
    with torch.inference_mode():
        model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=settings, streamer=clock)
    assert len(clock.times) == 2 + TOKENS
    return [moment - started for moment in clock.times[1:]]
