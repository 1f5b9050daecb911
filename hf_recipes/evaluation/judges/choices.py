"""Multiple choice without generating: the choice to which the model gives the highest likelihood is its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.judges.rows import read_rows


@dataclass(frozen=True)
class ChoiceRow:
    """One question. Exactly one of `messages` and `prompt` is given.

    Args:
        number: its line in the file.
        choices: texts, at least two and all different.
        answer_index: which of them is right, from 0.
        messages: a conversation up to where the assistant answers with one of the choices.
        prompt: plain text that one of the choices goes on, as the harness's tasks have it.
    """

    number: int
    choices: tuple[str, ...]
    answer_index: int
    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None


def read_choices(path: Path) -> list[ChoiceRow]:
    """Read JSONL rows ``{"messages": [...], "choices": ["…", "…"], "answer": 1}``; ``prompt`` for plain text.

    ``answer`` is an index from 0, the text of a choice, or its letter (``"B"``).

    Raises:
        UserError: the file cannot be read, is empty, or a row is ill-formed; file and line are named.
    """
    return [_choice_row(f"{path}, line {number}", number, row) for number, row in read_rows(path)]


def judge_choice(
    loglikelihoods: Sequence[float], lengths_in_bytes: Sequence[int], answer_index: int
) -> dict[str, float]:
    """Whether the likeliest choice is the right one.

    ``accuracy`` compares whole log-likelihoods, which favours short choices; ``accuracy_norm`` divides each by its
    choice's length in UTF-8 bytes (lm-evaluation-harness's ``acc`` and ``acc_bytes``; its ``acc_norm`` divides by
    characters, which is the same for English). Of equals the first counts, as there.

    Args:
        loglikelihoods: natural logarithms, summed over the tokens of each choice.
        lengths_in_bytes: of each choice.
        answer_index: the right one.
    """
    by_byte = [value / max(length, 1) for value, length in zip(loglikelihoods, lengths_in_bytes, strict=True)]
    return {
        "accuracy": float(_likeliest(loglikelihoods) == answer_index),
        "accuracy_norm": float(_likeliest(by_byte) == answer_index),
    }


def _likeliest(values: Sequence[float]) -> int:
    """The index of the greatest value; NaN is never it."""
    return max(range(len(values)), key=lambda index: (values[index] == values[index], values[index], -index))


def _choice_row(where: str, number: int, row: dict[str, Any]) -> ChoiceRow:
    choices = row.get("choices")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(choice, str) for choice in choices):
        raise UserError(f"{where} needs 'choices', a list of at least two texts.")
    if len(set(choices)) < len(choices):
        raise UserError(f"{where} has the same choice twice: one of them could never be right.")
    if "" in choices:
        raise UserError(f"{where} has an empty choice, which every model finds certain: write it out.")
    answer = _answer_index(where, row.get("answer"), choices)
    messages, prompt = row.get("messages"), row.get("prompt")
    if (messages is None) == (prompt is None):
        raise UserError(f"{where} needs either 'messages' or 'prompt', the question.")
    if prompt is not None:
        if not isinstance(prompt, str) or not prompt:
            raise UserError(f"{where}: 'prompt' is not a text.")
        return ChoiceRow(number, tuple(choices), answer, prompt=prompt)
    return ChoiceRow(number, tuple(choices), answer, messages=_turns(where, messages))


def _answer_index(where: str, answer: Any, choices: list[str]) -> int:
    if isinstance(answer, str):
        if answer in choices:
            return choices.index(answer)
        letter = ord(answer.strip().upper()) - ord("A") if len(answer.strip()) == 1 else -1
        if 0 <= letter < len(choices):
            return letter
    elif isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices):
        return answer
    shown = json.dumps(answer, ensure_ascii=False)
    raise UserError(f"{where}: answer {shown} is no choice: write an index from 0 to {len(choices) - 1}, or its text.")


def _turns(where: str, messages: Any) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not messages:
        raise UserError(f"{where}: 'messages' is not a list of turns.")
    for index, turn in enumerate(messages):
        if not isinstance(turn, dict) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise UserError(f"{where}: messages[{index}] needs a role and a content, both text.")
    if messages[-1]["role"] == "assistant":
        raise UserError(f"{where} ends with an assistant turn: the choices are what the assistant may say next.")
    return messages
