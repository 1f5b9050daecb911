"""Rows to be answered, read as a recipe's data are; every complaint names file and row; drawn with a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hf_recipes.core.errors import UserError
from hf_recipes.data.ledger import BadRow, Place
from hf_recipes.data.reading.formats import detect_format, to_example
from hf_recipes.data.reading.source_spec import SourceSpec
from hf_recipes.data.reading.sources import rename, source_blocks
from hf_recipes.evaluation.judges.rows import has_utf8

_TO_TELL_FORMAT = 100  # rows
_SAMPLING_SEED = 0  # one seed for every evaluation: runs are compared on the same rows
Row = TypeVar("Row")


@dataclass(frozen=True)
class DomainRow:
    """One question: the turns up to the last assistant turn, and that turn as the reference. `number` is its row in
    the file (among all rows, where there are several files); `references` are other right answers, `tools` what the
    prompt offers, `given` the row as it stands in the file."""

    number: int
    messages: list[dict[str, Any]]
    reference: str
    references: tuple[str, ...] = ()
    tools: list[dict[str, Any]] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InstructionRow:
    """One prompt with instructions that a program can check, as IFEval writes them (Zhou et al. 2023)."""

    number: int
    messages: list[dict[str, Any]]
    given: Mapping[str, Any]


def read_domain_rows(source: SourceSpec) -> list[DomainRow]:
    """Rows of any format that is known for training (see `data.reading.formats`); the last assistant turn is the
    reference, ``"references"`` may list others.

    Raises:
        UserError: no row, or an ill-formed one; file and row are named. Unlike rows to train on, none is left out: a
            figure must be of the rows that it says.
    """
    rows = list(_read(source))
    try:
        layout = detect_format([row for _, row in rows[:_TO_TELL_FORMAT]], source.path, source.format)
    except UserError as error:
        where = f"domain: {{path: {source.path}, columns: {{…}}}}"
        raise UserError(f"evaluation.domain: {str(error).removesuffix('.')} ({where}).") from None
    if layout == "text":
        raise UserError(
            f"'{source.path}' is plain text, which asks nothing: evaluation.domain needs prompts with their answers "
            "(evaluation.general takes the loss on text)."
        )
    numbers = [place.row for place, _ in rows]
    if len({place.file for place, _ in rows}) > 1:
        numbers = list(range(1, len(rows) + 1))
    return [_domain_row(number, *placed, layout) for number, placed in zip(numbers, rows, strict=True)]


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


def _read(source: SourceSpec) -> Iterator[tuple[Place, dict[str, Any]]]:
    for block in source_blocks(source):
        for place, row in block.rows():
            if isinstance(row, BadRow):
                raise _ill_formed(place, row)
            if not isinstance(row, dict):
                raise _ill_formed(place, BadRow("the row is not an object with named fields"))
            if not has_utf8(row):
                raise _ill_formed(place, BadRow("half a surrogate pair (\\ud800 to \\udfff), which is no character"))
            yield place, rename(row, source.columns)


def _domain_row(number: int, place: Place, row: dict[str, Any], layout: str) -> DomainRow:
    try:
        example = to_example(row, layout)
    except BadRow as fault:
        raise _ill_formed(place, fault) from None
    turns = example.messages
    last = max((index for index, turn in enumerate(turns) if turn["role"] == "assistant"), default=0)
    if not last:  # in first place, with nothing to answer
        raise _ill_formed(place, BadRow("no assistant turn after a prompt"))
    if turns[last].get("tool_calls"):
        raise _ill_formed(place, BadRow("its last assistant turn calls a tool, and answers are compared as text"))
    others = row.get("references") or []
    if not isinstance(others, list) or not all(isinstance(each, str) for each in others):
        raise _ill_formed(place, BadRow("'references' is not a list of texts"))
    return DomainRow(number, turns[:last], turns[last]["content"], tuple(others), example.tools, row)


def _ill_formed(place: Place, fault: BadRow) -> UserError:
    return UserError(f"{place.told}: {fault}; correct the row of evaluation.domain or take it out.")
