"""The rows everybody trains on: made to fit beforehand, so that none drops or cuts any, in the forms they read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

# Told to every trainer in so many words: some templates would put in a default of their own, others none.
SYSTEM = "You are a helpful assistant."
_MARGIN = 4  # cutting text at a token and reading it again can make a token more


@dataclass(frozen=True)
class Row:
    """A question with its answer."""

    prompt: str
    answer: str

    @property
    def prompt_messages(self) -> list[dict[str, str]]:
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": self.prompt}]

    @property
    def answer_messages(self) -> list[dict[str, str]]:
        return [{"role": "assistant", "content": self.answer}]


@dataclass(frozen=True)
class Sizes:
    """Tokens of each row in the model's own template, and how many of them are learned."""

    lengths: list[int]
    answers: list[int]

    @property
    def mean_length(self) -> float:
        return sum(self.lengths) / len(self.lengths)

    @property
    def supervised_share(self) -> float:
        return sum(self.answers) / sum(self.lengths)

    @property
    def mean_square_over_mean(self) -> float:
        """Σ length² / Σ length: attention's work per token goes with it."""
        return sum(length**2 for length in self.lengths) / sum(self.lengths)


def read_rows(path: Path) -> list[Row]:
    """Rows of a JSONL file with ``instruction``, ``input`` (may be empty) and ``output``."""
    with path.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines if line.strip()]
    return [Row("\n".join(filter(None, (row["instruction"], row.get("input")))), row["output"]) for row in rows]


def fit_rows(rows: Iterable[Row], tokenizer: Any, max_length: int) -> list[Row]:
    """The same rows, the longer side of those over `max_length` tokens cut at its end."""
    return [_fit(row, tokenizer, max_length) for row in rows]


def _fit(row: Row, tokenizer: Any, max_length: int) -> Row:
    while (excess := row_length(row, tokenizer) - max_length) > 0:
        prompt, answer = (tokenizer.encode(text, add_special_tokens=False) for text in (row.prompt, row.answer))
        longer = prompt if len(prompt) > len(answer) else answer
        del longer[-(excess + _MARGIN) :]
        row = Row(tokenizer.decode(prompt), tokenizer.decode(answer))
    return row


def full_rows(rows: list[Row], tokenizer: Any, length: int, count: int, supervised: float = 0.4) -> list[Row]:
    """`count` rows of about `length` tokens each (a few less), `supervised` of them the answer's."""
    stream = _endless_tokens(rows, tokenizer)
    room = length - row_length(Row("", ""), tokenizer)
    answer_size = round(length * supervised)
    sizes = (max(1, room - answer_size), answer_size)
    made = (Row(*(tokenizer.decode([next(stream) for _ in range(size)]) for size in sizes)) for _ in range(count))
    return fit_rows(made, tokenizer, length)


def _endless_tokens(rows: list[Row], tokenizer: Any) -> Iterator[int]:
    for row in cycle(rows):
        yield from tokenizer.encode(f"{row.prompt}\n{row.answer}\n", add_special_tokens=False)


def row_length(row: Row, tokenizer: Any) -> int:
    """Tokens of a row in the model's template."""
    return len(tokenizer.apply_chat_template(row.prompt_messages + row.answer_messages, return_dict=True)["input_ids"])


def row_sizes(rows: Iterable[Row], tokenizer: Any) -> Sizes:
    """Measure rows."""
    rows = list(rows)
    options = {"add_generation_prompt": True, "return_dict": True}
    prompts = [len(tokenizer.apply_chat_template(row.prompt_messages, **options)["input_ids"]) for row in rows]
    lengths = [row_length(row, tokenizer) for row in rows]
    return Sizes(lengths, [length - prompt for length, prompt in zip(lengths, prompts, strict=True)])


def write_rows(rows: list[Row], directory: Path) -> None:
    """Write the rows in every form a rival reads."""
    for name in ("prompt_completion", "litgpt"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    conversations = [{"messages": row.prompt_messages + row.answer_messages} for row in rows]
    pairs = [{"prompt": row.prompt_messages, "completion": row.answer_messages} for row in rows]
    alpaca = [{"instruction": row.prompt, "input": "", "output": row.answer, "system": SYSTEM} for row in rows]
    _write_lines(directory / "messages.jsonl", conversations)
    _write_lines(directory / "prompt_completion" / "train.jsonl", pairs)
    _write_lines(directory / "alpaca.jsonl", alpaca)
    columns = {"prompt": "instruction", "query": "input", "response": "output", "system": "system"}
    registry = {"rows": {"file_name": "alpaca.jsonl", "columns": columns}}
    (directory / "dataset_info.json").write_text(json.dumps(registry))
    plain = [{"instruction": row.prompt, "output": row.answer} for row in rows]
    (directory / "litgpt" / "train.json").write_text(json.dumps(plain))
    (directory / "litgpt" / "val.json").write_text(json.dumps(plain[:8]))  # it asks for some, and looks at two batches


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
