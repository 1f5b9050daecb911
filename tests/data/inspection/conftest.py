"""What the inspection tests share: small prepared data, made by hand, with a report as `prepare_data` writes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

IGNORED = -100


@dataclass
class Prepared:
    """Stands for `PreparedData`."""

    train: Any
    eval: Any
    report: dict[str, Any]


def encode_pair(tokenizer, question, answer):
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(prompt, add_special_tokens=False).input_ids
    said = tokenizer(f"{answer}<|im_end|>", add_special_tokens=False).input_ids
    return {"input_ids": ids + said, "labels": [IGNORED] * len(ids) + said}


def report_of(rows, **changes):
    tokens = sum(len(row["input_ids"]) for row in rows)
    learned = sum(label != IGNORED for row in rows for label in row["labels"])
    source = {
        "source": "orders",
        "path": "orders.jsonl",
        "role": "domain",
        "format": "messages",
        "files": [],
        "read": len(rows),
        "dropped": {},
        "truncated": 0,
        "shortened": 0,
        "kept": len(rows),
        "train": len(rows),
        "eval": 0,
        "not_drawn": 0,
        "train_tokens": tokens,
        "train_supervised_tokens": learned,
    }
    source.update(changes.pop("source", {}))
    return {
        "sources": [source],
        "general_share": {"unit": "rows", "asked": 0.15, "reached": None, "by": {}},
        "train": {"rows": len(rows), "tokens": tokens, "supervised_tokens": learned, "length": {}},
        "eval": {"rows": 3, "tokens": 30, "supervised_tokens": 10, "length": {}},
        "end_of_turn": {"text": "<|im_end|>", "token_id": 2, "is_eos": True},
        "settings": {"max_length": 64},
        "fingerprint": "0",
        **changes,
    }


@pytest.fixture
def prepare(tokenizer):
    """(question, answer) pairs → prepared data; keyword arguments replace parts of the report."""

    def build(pairs, **changes):
        from datasets import Dataset

        rows = [encode_pair(tokenizer, question, answer) for question, answer in pairs]
        columns = {name: [row[name] for row in rows] for name in ("input_ids", "labels")}
        columns |= {"source": ["orders"] * len(rows), "row_id": [f"orders.jsonl:{n}" for n in range(len(rows))]}
        return Prepared(Dataset.from_dict(columns), None, report_of(rows, **changes))

    return build


@pytest.fixture
def varied(prepare):
    """Forty conversations of different lengths."""
    return prepare([(f"How many? {'so ' * (n % 7)}", f"{n} pens{' and ink' * (n % 5)}") for n in range(40)])
