"""Instructions whose following can be verified (IFEval): rows in, a strict and a lenient verdict on each instruction.

Source: Zhou et al. 2023, arXiv 2311.07911; strict and lenient ("loose") as in its section 2.2.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.log import logger
from hf_recipes.evaluation.judges.instruction_checks import CHECKS, RELATIONS
from hf_recipes.evaluation.judges.language import detector_is_here
from hf_recipes.evaluation.judges.rows import read_rows

_TYPES: dict[str, tuple[type, str]] = {"int": (int, "a whole number"), "str": (str, "a text")}


@dataclass(frozen=True)
class InstructionVerdict:
    """Whether one instruction was followed: by the answer as it is, and by it or one of its lenient forms."""

    name: str
    strict: bool
    lenient: bool


@dataclass(frozen=True)
class InstructionRow:
    """A prompt and its instructions: `number` is its line, `row` the row itself, which `check_instructions` takes."""

    number: int
    prompt: str
    row: Mapping[str, Any]


def read_instructions(path: Path) -> list[InstructionRow]:
    """Read rows of IFEval's input file: ``{"key", "prompt", "instruction_id_list", "kwargs"}``.

    Raises:
        UserError: the file cannot be read, or a row names an unknown instruction or lacks an argument of one; file and
            line are named. Also where a row asks for a language and `langdetect` is not installed.
    """
    rows = []
    for number, row in read_rows(path):
        where = f"{path}, line {number}"
        if not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
            raise UserError(f"{where} has no 'prompt': write the text that is asked.")
        try:
            instructions = list(_instructions(row))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        if not instructions:
            raise UserError(f"{where} asks for nothing: its instruction_id_list is empty.")
        rows.append(InstructionRow(number, row["prompt"], row))
    _tell_of_languages(path, rows)
    return rows


def check_instructions(answer: str, instructions: Sequence[Mapping[str, Any]]) -> list[InstructionVerdict]:
    """Judge one answer.

    Args:
        answer: as the model wrote it.
        instructions: rows with ``instruction_id_list`` and ``kwargs``, one dictionary for each id; usually one row.

    Raises:
        UserError: an unknown instruction, or one whose arguments are missing or of the wrong kind.
    """
    forms = [form for form in lenient_forms(answer) if form.strip()]
    verdicts = []
    for name, arguments in (pair for row in instructions for pair in _instructions(row)):
        follows = functools.partial(CHECKS[name], **arguments)
        strict = bool(answer.strip()) and follows(answer)
        verdicts.append(InstructionVerdict(name, strict, strict or any(map(follows, forms))))
    return verdicts


def lenient_forms(answer: str) -> list[str]:
    """The eight forms that count leniently: with and without the first line, the last line, and asterisks.

    They forgive an introduction ("Sure, here it is:"), a closing remark, and bold type.
    """
    lines = answer.split("\n")
    cut = [answer, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    return [*cut, *(form.replace("*", "") for form in cut)]


def _instructions(row: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    names, arguments = row.get("instruction_id_list"), row.get("kwargs")
    if not isinstance(names, list) or not isinstance(arguments, list) or len(names) != len(arguments):
        raise UserError("'instruction_id_list' and 'kwargs' must be lists of one length.")
    for name, given in zip(names, arguments, strict=True):
        if not isinstance(name, str) or name not in CHECKS:
            raise UserError(f"'{name}' is no instruction of IFEval{nearest(str(name), CHECKS)}.")
        if not isinstance(given, (dict, type(None))):
            raise UserError(f"the 'kwargs' of {name} are {json.dumps(given, ensure_ascii=False)}, not a mapping.")
        # Files made by way of tables hold every argument of every instruction, with null for the others'.
        own = {key: value for key, value in (given or {}).items() if value is not None}
        _check_arguments(name, own)
        yield name, own


def _check_arguments(name: str, given: dict[str, Any]) -> None:
    wanted = _arguments(name)
    for key in given:
        if key not in wanted:
            known = ", ".join(wanted) or "nothing"
            raise UserError(f"{name} takes no '{key}'{nearest(key, wanted)}: it takes {known}.")
    for key, kind in wanted.items():
        if key not in given:
            raise UserError(f"{name} lacks '{key}'.")
        if not _is_kind(given[key], kind):
            raise UserError(f"{name}: {key} is {json.dumps(given[key], ensure_ascii=False)}, not {_in_words(kind)}.")
        if given[key] in ("", []):
            raise UserError(f"{name}: {key} is empty.")
        if key.endswith("relation") and given[key] not in RELATIONS:
            raise UserError(f"{name}: {key} is '{given[key]}', not one of {', '.join(RELATIONS)}.")


@functools.cache
def _arguments(name: str) -> dict[str, str]:
    """Names and types (as written) of what the instruction's function takes besides the answer."""
    return {key: part.annotation for key, part in list(inspect.signature(CHECKS[name]).parameters.items())[1:]}


def _is_kind(value: Any, kind: str) -> bool:
    if kind == "list[str]":
        return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
    return isinstance(value, _TYPES[kind][0]) and not isinstance(value, bool)


def _in_words(kind: str) -> str:
    return "a list of texts" if kind == "list[str]" else _TYPES[kind][1]


def _tell_of_languages(path: Path, rows: list[InstructionRow]) -> None:
    if detector_is_here():
        return
    names = {row.number: set(row.row["instruction_id_list"]) for row in rows}
    if line := next((number for number, ids in names.items() if "language:response_language" in ids), None):
        raise UserError(
            f"{path}, line {line} asks for a language, which only langdetect can judge: run pip install"
            " 'hf-recipes[evaluate]', or leave such rows out."
        )
    if any(name.startswith("change_case:english") for ids in names.values() for name in ids):
        logger.warning(
            f"{path}: change_case:english_… is judged by the case alone, not by the language: langdetect is not"
            " installed (pip install 'hf-recipes[evaluate]')."
        )
