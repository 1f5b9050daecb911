"""What is asked of the model before the first step: whose answers these are, whose template, and where numbers end."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hf_recipes.core.labels import IGNORED_LABEL
from hf_recipes.training.overfit.budget import LEAST_ROWS
from hf_recipes.training.overfit.evidence import AnswerFacts, PrecisionFacts, TemplateFacts
from hf_recipes.training.overfit.floor import Row, last_answer
from hf_recipes.training.overfit.losses import SHIFTS, LossOfRows
from hf_recipes.training.overfit.samples import in_batches

_ANSWER_TOKENS = 32
_CONVERSATION = (
    ("user", "What is the capital of France?"),
    ("assistant", "The capital of France is Paris."),
    ("user", "Thank you."),
    ("assistant", "You are welcome."),
)


def answer_facts(
    losses: LossOfRows, rows: Sequence[Row], micro_batch: int, known: Sequence[float] = (), enough: float = math.inf
) -> AnswerFacts | None:
    """Compare each row's last answer after its own prompt and after that of another row; None where too few rows have
    a prompt of their own. `known` are losses of the first of the rows, which need not be computed again; where answers
    cost more than `enough` nats a token, the prompts are asked too."""
    pairs = _pairs(rows)
    if len(pairs) < 3:
        return None
    answers = [answer for _, answer in pairs]
    prompts = [prompt for prompt, _ in pairs]
    by_row = {_key(row): loss for row, loss in zip(rows, known, strict=False)}
    joined = [_join(*pair) for pair in pairs]
    missing = [row for row in joined if _key(row) not in by_row]
    by_row |= zip(map(_key, missing), _losses(losses, missing, micro_batch), strict=True)
    mixed = [_join(*pair) for pair in zip([*prompts[1:], prompts[0]], answers, strict=True)]
    facts = compare_answers([by_row[_key(row)] for row in joined], _losses(losses, mixed, micro_batch))
    if facts is None or facts.own <= enough:
        return facts
    return replace(facts, prompts=_prompt_loss(losses, prompts[:LEAST_ROWS], micro_batch))


def _prompt_loss(losses: LossOfRows, prompts: Sequence[list[int]], micro_batch: int) -> float:
    """The mean loss of what the prompts do not have in common at their start (a template's head, a system prompt)."""
    head = next((at for at, ids in enumerate(zip(*prompts, strict=False)) if len(set(ids)) > 1), min(map(len, prompts)))
    rows = [_join(prompt[:head], prompt[head:]) for prompt in prompts if len(prompt) > head + 1]
    return statistics.fmean(_losses(losses, rows, micro_batch)) if rows else math.inf


def compare_answers(own: Sequence[float], others: Sequence[float]) -> AnswerFacts | None:
    """The paired comparison of `AnswerFacts`: its z is Student's t of the differences; pure."""
    differences = [a - b for a, b in zip(own, others, strict=True)]
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return None
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    mean = statistics.fmean(differences)
    z = mean / error if error else math.copysign(math.inf, mean) if mean else 0.0
    wins = sum(difference < 0 for difference in differences) / len(differences)
    return AnswerFacts(len(own), statistics.fmean(own), statistics.fmean(others), wins, z)


def _pairs(rows: Sequence[Row]) -> list[tuple[list[int], list[int]]]:
    """Prompts and the first tokens of their answers, each of both once: what is alike belongs anywhere."""
    pairs: list[tuple[list[int], list[int]]] = []
    seen: set[tuple[int, ...]] = set()
    for row in rows:
        if (place := last_answer(row["labels"])) is None:
            continue
        start, end = place
        prompt = list(row["input_ids"][:start])
        answer = list(row["labels"][start : min(end, start + _ANSWER_TOKENS)])
        if not {(0, *prompt), (1, *answer)} & seen:
            pairs.append((prompt, answer))
        seen |= {(0, *prompt), (1, *answer)}
    return pairs


def _key(row: Row) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What its loss depends on: the row up to its last trained token."""
    labels = row["labels"]
    end = max((place + 1 for place, label in enumerate(labels) if label != IGNORED_LABEL), default=0)
    return tuple(row["input_ids"][:end]), tuple(labels[:end])


def _join(prompt: list[int], answer: list[int]) -> Row:
    return {"input_ids": prompt + answer, "labels": [IGNORED_LABEL] * len(prompt) + answer}


def _losses(losses: LossOfRows, rows: Sequence[Row], micro_batch: int) -> list[float]:
    there = SHIFTS.index(0)
    return [float(loss) for batch in in_batches(rows, micro_batch) for loss in losses.by_shift(batch)[:, there]]


def template_facts(losses: LossOfRows, tokenizer: Any, own_template: str | None) -> TemplateFacts | None:
    """What a conversation costs by the tokenizer's template and by `own_template`; None where they render it alike, or
    one of them does not."""
    used = _conversation(tokenizer, tokenizer.chat_template)
    own = _conversation(tokenizer, own_template)
    if used is None or own is None or used == own:
        return None
    costs = [_losses(losses, [row], 1)[0] * _trained(row) for row in (used, own)]
    return TemplateFacts(used=costs[0], own=costs[1])


def _conversation(tokenizer: Any, template: str | None) -> Row | None:
    """The conversation in tokens, all after its first words being trained; None where the template refuses it."""
    if not template:
        return None
    messages = [{"role": role, "content": content} for role, content in _CONVERSATION]
    try:
        text = tokenizer.apply_chat_template(messages, chat_template=template, tokenize=False)
        begin = text.index(_CONVERSATION[0][1])
    except Exception:  # a template raises what its author wrote into it
        return None
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    labels = [token if start > begin else IGNORED_LABEL for token, (start, _) in zip(ids, offsets, strict=True)]
    return {"input_ids": ids, "labels": labels}


def _trained(row: Row) -> int:
    return sum(label != IGNORED_LABEL for label in row["labels"])


@torch.no_grad()
def precision_facts(losses: LossOfRows, rows: Sequence[Row], *, is_bad: bool) -> PrecisionFacts:
    """The dtypes; where a loss `is_bad`, also the first weight or module output of `rows` that is not finite."""
    model = losses.model
    dtypes = Counter[str]()
    for parameter in model.parameters():
        if parameter.requires_grad:
            dtypes[_name(parameter.dtype)] += parameter.numel()
    trained = dtypes.most_common(1)[0][0] if dtypes else "no"
    computes_in = trained
    with losses.autocast():
        device = next(model.parameters()).device.type
        if torch.is_autocast_enabled(device):
            computes_in = _name(torch.get_autocast_dtype(device))
        elif not dtypes or trained != _base_dtype(model):
            computes_in = _base_dtype(model)
    if not is_bad:
        return PrecisionFacts(trained, computes_in)
    bad_weight = next((name for name, value in model.named_parameters() if not _is_finite(value)), "")
    return PrecisionFacts(trained, computes_in, bad_weight, "" if bad_weight else _first_bad_module(losses, rows))


def _base_dtype(model: nn.Module) -> str:
    dtypes = Counter[str]()
    for parameter in model.parameters():
        if parameter.is_floating_point():
            dtypes[_name(parameter.dtype)] += parameter.numel()
    return dtypes.most_common(1)[0][0]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_finite(value: Tensor) -> bool:
    return not value.is_floating_point() or bool(torch.isfinite(value.abs().max().float()))


def _first_bad_module(losses: LossOfRows, rows: Sequence[Row]) -> str:
    """The first innermost module whose output is not finite."""
    found: list[str] = []

    def look(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            value = output[0] if isinstance(output, tuple) else output
            if not found and isinstance(value, Tensor) and not _is_finite(value):
                found.append(name)

        return hook

    hooks = [
        module.register_forward_hook(look(name)) for name, module in losses.model.named_modules() if _is_leaf(module)
    ]
    try:
        losses.total(rows)
    finally:
        for each in hooks:
            each.remove()
    return found[0] if found else ""


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None
