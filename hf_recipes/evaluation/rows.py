"""Rows to be answered: read from JSONL, with file and line in every complaint, and drawn with a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.judges.rows import read_rows

_SAMPLING_SEED = 0  # one seed for every evaluation: runs are compared on the same rows
Row = TypeVar("Row")


@dataclass(frozen=True)
class DomainRow:
    """One question: the turns up to the last assistant turn, and that turn as the reference. `number` is its line;
    `references` are other right answers, `given` the row as it stands in the file."""

    number: int
    messages: list[dict[str, Any]]
    reference: str
    references: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InstructionRow:
    """One prompt with instructions that a program can check, as IFEval writes them (Zhou et al. 2023)."""

    number: int
    messages: list[dict[str, Any]]
    given: Mapping[str, Any]


def read_domain_rows(path: Path) -> list[DomainRow]:
    """Rows ``{"messages": [...]}`` whose last assistant turn is the reference; ``"references"`` may list others.

    Raises:
        UserError: no row, or an ill-formed one; file and line are named.
    """
    return [_domain_row(f"{path}, line {number}", number, row) for number, row in read_rows(path)]


def read_instruction_rows(path: Path) -> list[InstructionRow]:
    """Rows as IFEval writes them (see `judges.instructions.read_instructions`), the prompt as a user's turn.

    Raises:
        UserError: see `read_domain_rows`; also an unknown instruction.
    """
    from hf_recipes.evaluation.judges.instructions import read_instructions

    return [
        InstructionRow(each.number, [{"role": "user", "content": each.prompt}], each.row)
        for each in read_instructions(path)
    ]


def draw(rows: Sequence[Row], count: int) -> list[Row]:
    """At most `count` of `rows`, drawn with a fixed seed (not a file's head, which may be sorted) and kept in order."""
    if len(rows) <= count:
        return list(rows)
    return [rows[index] for index in sorted(random.Random(_SAMPLING_SEED).sample(range(len(rows)), count))]


def _domain_row(where: str, number: int, row: dict[str, Any]) -> DomainRow:
    turns = _turns(where, row.get("messages"))
    last = max((index for index, turn in enumerate(turns) if turn["role"] == "assistant"), default=None)
    if not last:  # absent, or in first place with nothing to answer
        raise UserError(f"{where} has no assistant turn after a prompt: its last assistant turn is the reference.")
    others = row.get("references") or []
    if not isinstance(others, list) or not all(isinstance(each, str) for each in others):
        raise UserError(f"{where}: 'references' is not a list of texts: list the other right answers.")
    return DomainRow(number, turns[:last], turns[last]["content"], tuple(others), row)


def _turns(where: str, turns: Any) -> list[dict[str, Any]]:
    if not isinstance(turns, list):
        raise UserError(f"{where} has no list 'messages': write {{'messages': [{{'role': …, 'content': …}}, …]}}.")
    for index, turn in enumerate(turns):
        texts = (turn.get("role"), turn.get("content")) if isinstance(turn, dict) else (None,)
        if not all(isinstance(each, str) for each in texts):
            raise UserError(f"{where}: messages[{index}] needs a role and a content, both text.")
    return turns
