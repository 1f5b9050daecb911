"""Greedy answers in batches, timed. Prompts and answers are token ids at the core, text at the edge."""

from __future__ import annotations

import bisect
import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.errors import UserError, first_line


@dataclass(frozen=True)
class Answer:
    """One answer: its text, its `tokens` with the end token, whether it `ended` before the token limit, and its even
    share of the wall time of its batch."""

    text: str
    tokens: int
    ended: bool
    seconds: float


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
    model: Any,
    tokenizer: Any,
    conversations: Sequence[list[dict[str, Any]]],
    *,
    max_new_tokens: int,
    batch_size: int,
    stop: Sequence[str] = (),
) -> Generations:
    """Answer each conversation (messages up to the turn to be written) greedily; see `answer_batches`.

    Args:
        conversations: at least one; the tokenizer's chat template renders them.
    """
    prompts = [render_prompt(tokenizer, messages) for messages in conversations]
    return continue_prompts(model, tokenizer, prompts, max_new_tokens=max_new_tokens, batch_size=batch_size, stop=stop)


def continue_prompts(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    batch_size: int,
    stop: Sequence[str] = (),
) -> Generations:
    """`generate_answers` for prompts that are token ids already."""
    answers: dict[int, Answer] = {}
    for batch in answer_batches(
        model, tokenizer, prompts, max_new_tokens=max_new_tokens, batch_size=batch_size, stop=stop
    ):
        answers |= batch
    return Generations(
        answers=[answers[index].text for index in range(len(prompts))],
        new_tokens=sum(answer.tokens for answer in answers.values()),
        seconds=sum(answer.seconds for answer in answers.values()),
        cut=sum(not answer.ended for answer in answers.values()),
    )


def answer_batches(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    batch_size: int,
    stop: Sequence[str] = (),
) -> Iterator[dict[int, Answer]]:
    """Continue prompts greedily, and give each batch's answers, by the index of their prompt, when it is done.

    Prompts are sorted by length, longest first, so that batches pad little and memory runs out at once if at all.
    The model's own sampling settings and penalties are set aside: greedy means the likeliest token.

    Args:
        model: a causal LM; evaluated in its dtype on its device. Its training mode is put back afterwards.
        tokenizer: its end token ends an answer, as does each of the model's generation config.
        prompts: token ids.
        max_new_tokens: limit of an answer.
        batch_size: prompts generated at once.
        stop: texts that end an answer where they first appear; they are not part of it.
    """
    ends = end_token_ids(model, tokenizer)
    pad = pad_token_id(tokenizer, ends)
    settings = _greedy(max_new_tokens, ends, pad)
    stopped = _stopper(tokenizer, stop)
    was_training = model.training
    model.eval()
    try:
        for batch in length_batches([len(prompt) for prompt in prompts], batch_size):
            started = time.perf_counter()
            rows = _generate(model, [prompts[index] for index in batch], pad, settings, stopped)
            seconds = (time.perf_counter() - started) / len(batch)
            yield {index: _answer(tokenizer, row, ends, stop, seconds) for index, row in zip(batch, rows, strict=True)}
    finally:
        model.train(was_training)


def _answer(tokenizer: Any, row: list[int], ends: Sequence[int], stop: Sequence[str], seconds: float) -> Answer:
    tokens = until_end(row, ends)
    text = tokenizer.decode(tokens, skip_special_tokens=True)
    places = [place for each in stop if (place := text.find(each)) >= 0]
    if not places:
        return Answer(text, len(tokens), bool(tokens) and tokens[-1] in ends, seconds)

    def stopped(count: int) -> bool:  # the row's other tokens fill up its batch
        said = tokenizer.decode(tokens[:count], skip_special_tokens=True)
        return any(each in said for each in stop)

    needed = bisect.bisect_left(range(len(tokens)), True, key=stopped)
    return Answer(text[: min(places)], needed, True, seconds)


def render_prompt(
    tokenizer: Any, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None
) -> list[int]:
    """Token ids of `messages` by the chat template, up to where the assistant begins to write; `tools` as JSON schemas.

    Raises:
        UserError: the template refuses them, or reaches for what its sandbox does not give.
    """
    try:
        rendered = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, return_dict=True)
        return list(rendered["input_ids"])
    except Exception as error:  # templates are programs of their own: any kind of error may come out
        reason = first_line(error)
        raise UserError(f"The chat template refuses a conversation ({reason}): correct it, or the row.") from error


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


def _generate(
    model: Any, prompts: Sequence[Sequence[int]], pad: int, settings: Any, stopped: Callable[[Any], Any] | None
) -> list[list[int]]:
    import torch

    ids, mask = (torch.tensor(rows, device=model.device) for rows in left_pad(prompts, pad))
    length = ids.shape[1]
    more: dict[str, Any] = {}
    if stopped is not None and _takes_criteria(model):
        # Only what was written counts: a template may end in a line break, and "\n\n" would stop at the next.
        more["stopping_criteria"] = [lambda tokens, scores, **kwargs: stopped(tokens[:, length:])]
    with torch.inference_mode():
        output = model.generate(input_ids=ids, attention_mask=mask, generation_config=settings, **more)
    return output[:, length:].tolist()


def _takes_criteria(model: Any) -> bool:
    """Another runtime's `generate` may not; its answers are cut at the text all the same, only later."""
    parameters = inspect.signature(model.generate).parameters
    return "stopping_criteria" in parameters or any(each.kind == each.VAR_KEYWORD for each in parameters.values())


def _stopper(tokenizer: Any, stop: Sequence[str]) -> Callable[[Any], Any] | None:
    """From token ids to whether each row ends in one of the texts; None without any."""
    if not stop:
        return None
    from transformers import StopStringCriteria

    criteria = StopStringCriteria(tokenizer, list(stop))
    return lambda tokens: criteria(tokens, None)


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
