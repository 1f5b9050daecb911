"""What a model says: prompts as tokens, greedy answers, logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

PROMPTS = (
    "What is the capital of France?",
    "Write a short e-mail that moves our meeting from Monday to Tuesday.",
    'Give me {"a": 1, "b": [2, 3]} as YAML.',
    "Explain in two sentences why the sky is blue.",
)
NEW_TOKENS = 24
Messages = Sequence[dict[str, Any]]


def fixed_prompts() -> list[list[dict[str, str]]]:
    """`PROMPTS` as conversations."""
    return [[{"role": "user", "content": prompt}] for prompt in PROMPTS]


def render(tokenizer: Any, messages: Any) -> list[int]:
    """A conversation (`Messages`) as tokens up to where the answer begins; its last text alone without a chat template.
    What is token ids already stays."""
    if isinstance(messages[0], int):
        return [int(token) for token in messages]
    if tokenizer.chat_template:
        encoded = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=True)
        return list(encoded["input_ids"])
    return list(tokenizer(str(messages[-1]["content"]))["input_ids"])


def greedy(model: Any, prompts: Sequence[list[int]], new_tokens: int = NEW_TOKENS) -> list[list[int]]:
    """At most `new_tokens` greedy tokens for each prompt, all prompts at once, without the sampling settings of the
    model's own config; none of a classifier."""
    import torch
    from transformers import GenerationConfig

    if not model.can_generate() or not prompts:
        return [[] for _ in prompts]
    own = model.generation_config
    pad = own.pad_token_id if own.pad_token_id is not None else 0
    settings = GenerationConfig(
        max_new_tokens=new_tokens,
        do_sample=False,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        repetition_penalty=1.0,
        eos_token_id=own.eos_token_id,
        pad_token_id=pad,
    )
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts], device=model.device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device)
    with torch.inference_mode():
        output = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings)
    ends = own.eos_token_id if isinstance(own.eos_token_id, list) else [own.eos_token_id]
    return [_up_to_end(row, ends) for row in output[:, longest:].tolist()]


def _up_to_end(answer: list[int], ends: Sequence[int | None]) -> list[int]:
    """Without what pads a finished answer in a batch."""
    stop = next((index + 1 for index, token in enumerate(answer) if token in ends), len(answer))
    return answer[:stop]


def logits(model: Any, rows: Sequence[list[int]]) -> list[Any]:
    """For each row fp32 logits, (positions, words or labels). Row by row: padding would be one more difference."""
    import torch

    with torch.inference_mode():
        found = [model(input_ids=torch.tensor([row], device=model.device)).logits for row in rows]
    return [each.reshape(-1, each.shape[-1]).float() for each in found]


def rows_that_fit(lengths: Sequence[int], positions: int) -> dict[int, int]:
    """How many tokens of which rows are taken, so that together they are at most `positions`: whole rows, in their
    order, as far as there is room, since what was learned stands at a row's end; where not one fits, the beginning of
    the first."""
    taken = {}
    for index, length in enumerate(lengths):
        if 2 <= length <= positions:
            taken[index] = length
            positions -= length
    if not taken and positions >= 2 and max(lengths, default=0) >= 2:
        first = next(index for index, length in enumerate(lengths) if length >= 2)
        taken[first] = min(lengths[first], positions)
    return taken
