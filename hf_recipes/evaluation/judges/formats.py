"""Whether an answer keeps the format asked for: the whole answer (strict), or some part of it (lenient)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.evaluation.judges.code_format import code_fault
from hf_recipes.evaluation.judges.json_format import compiled_schema, json_fault, schema_fault
from hf_recipes.evaluation.judges.pieces import Piece, fenced, json_pieces, without_fences, xml_pieces
from hf_recipes.evaluation.judges.regex_format import RegexFormat
from hf_recipes.evaluation.judges.xml_format import xml_fault

_MAX_PIECES = 100  # parts of one answer that are looked at


@dataclass(frozen=True)
class FormatVerdict:
    """One answer's format.

    Args:
        strict: the whole answer, but for white space around it, has the format.
        lenient: it has, or a part of it in a code fence or amid prose does.
        extra_prose: a part has it and there are words around that part; False where no part has it.
        why: in words why it is not strict; empty where it is.
    """

    strict: bool
    lenient: bool
    extra_prose: bool
    why: str


Fault = Callable[[str], str]
"""What is wrong with a text that should have the format, in words; an empty string where nothing is."""


def format_check(spec: Mapping[str, Any]) -> Callable[[str], FormatVerdict]:
    """A judge of answers.

    Args:
        spec: exactly one of ``{"json": True}`` (an object or array), ``{"schema": path or dict}``,
            ``{"regex": "…"}`` (the whole of it must match), ``{"xml": True or root tag}`` (well-formed),
            ``{"code": "python"}`` (parses; ``json``, and whatever tree-sitter knows where it is installed).

    Raises:
        UserError: an unknown or second key, or a value that is no schema, pattern, tag or language.
    """
    if len(spec) != 1:
        raise UserError(f"evaluation.format needs exactly one of {', '.join(_FORMATS)}; it has {_listed(spec)}.")
    ((name, value),) = spec.items()
    if name not in _FORMATS:
        raise UserError(f"evaluation.format.{name} is no format{nearest(str(name), _FORMATS)}: {', '.join(_FORMATS)}.")
    fault, pieces = _FORMATS[name](value)
    return lambda answer: _judge(answer, fault, pieces)


def _judge(answer: str, fault: Fault, pieces: Callable[[str], Iterable[Piece]]) -> FormatVerdict:
    whole = answer.strip()
    why = fault(whole) if whole else "empty"
    if not why:
        return FormatVerdict(True, True, False, "")
    for piece in itertools.islice(pieces(whole), _MAX_PIECES):
        if not fault(piece.body):
            prose = bool(without_fences(whole[: piece.start] + "\n" + whole[piece.end :]))
            around = "with text around it" if prose else "in a code fence" if piece.fenced else "with marks around it"
            return FormatVerdict(False, True, prose, around)
    return FormatVerdict(False, False, False, why)


def _json(value: Any) -> tuple[Fault, Callable[[str], Iterable[Piece]]]:
    _must_be_true("json", value)
    return json_fault, json_pieces


def _schema(value: Any) -> tuple[Fault, Callable[[str], Iterable[Piece]]]:
    validator = compiled_schema(value)
    return lambda text: schema_fault(text, validator), json_pieces


def _regex(value: Any) -> tuple[Fault, Callable[[str], Iterable[Piece]]]:
    if not isinstance(value, str) or not value:
        raise UserError(f"evaluation.format.regex: {value!r} is not a pattern: write it as a text in quotes.")
    pattern = RegexFormat(value)
    return pattern.fault, pattern.pieces


# Names of https://www.w3.org/TR/xml/#NT-Name, near enough to tell them from text.
_XML_NAME = re.compile(r"[^\W\d][\w:.\-]*")


def _xml(value: Any) -> tuple[Fault, Callable[[str], Iterable[Piece]]]:
    if value is not True and not (isinstance(value, str) and _XML_NAME.fullmatch(value.strip())):
        raise UserError(f"evaluation.format.xml: {value!r} is neither true nor the name of the root tag.")
    root = None if value is True else value.strip()
    return lambda text: xml_fault(text, root), lambda text: xml_pieces(text, root)


def _code(value: Any) -> tuple[Fault, Callable[[str], Iterable[Piece]]]:
    if value == "json":
        return json_fault, json_pieces
    return code_fault(value), lambda text: fenced(text, _tags(value))


def _tags(language: str) -> tuple[str, ...]:
    return {"python": ("python", "py", "python3")}.get(language, (language,))


def _must_be_true(name: str, value: Any) -> None:
    if value is not True:
        raise UserError(f"evaluation.format.{name}: {value!r} is not true: leave the key out to ask for no format.")


def _listed(spec: Mapping[str, Any]) -> str:
    return ", ".join(map(str, spec)) or "none"


_FORMATS: dict[str, Callable[[Any], tuple[Fault, Callable[[str], Iterable[Piece]]]]] = {
    "json": _json,
    "schema": _schema,
    "regex": _regex,
    "xml": _xml,
    "code": _code,
}
