"""The parts of an answer that may be what was asked for: contents of code fences, and JSON or XML amid prose."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

# A fence line of Markdown: at most three blanks before; what follows an opening one begins with the language. Here and
# below no two repeats can divide the same text in several ways: a hostile answer would make a search try them all.
_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^\n]*)$", re.MULTILINE)
_LANGUAGE = re.compile(r"[\w+#.-]*")
_FENCE_MARKS = re.compile(r"(?:`{3,}|~{3,})[ \t]*[\w+#.-]*")
_DECODER = json.JSONDecoder()
# Characters that the reader of JSON may go over in search of it; an answer of nothing but brackets would have it go
# over the rest from each of them.
_SEARCHED_CHARACTERS = 20_000_000
_DEEP_CHARACTERS = 100_000  # what is charged for nesting that the reader gave up on, since it does not tell where


@dataclass(frozen=True)
class Piece:
    """A part of an answer: `body` is the part, `start` and `end` enclose it with its fence, where it has one."""

    start: int
    end: int
    body: str
    fenced: bool = False


def fenced(answer: str, languages: tuple[str, ...] = ()) -> Iterator[Piece]:
    """What stands in code fences, in order: those that name one of `languages` first, then those that name none.

    Without `languages` all of them. A fence that is never closed, as in an answer that was cut, goes to the end.
    """
    found = list(_fences(answer))
    if not languages:
        yield from (piece for _, piece in found)
        return
    yield from (piece for name, piece in found if name in languages)
    yield from (piece for name, piece in found if not name)


def json_pieces(answer: str) -> Iterator[Piece]:
    """Where JSON may be: fences, then objects anywhere, then arrays that begin and end a line (``[1]`` in a sentence is
    a citation). Only values that parse are found outside fences, the outermost ones, longest first."""
    yield from fenced(answer)
    spans = _json_spans(answer)
    for start, end in sorted(spans, key=lambda span: span[0] - span[1]):
        yield Piece(start, end, answer[start:end])


def xml_pieces(answer: str, root: str | None) -> Iterator[Piece]:
    """Where XML may be: fences, then from the first opening tag (of `root`) to its last closing one."""
    yield from fenced(answer)
    name = r"[A-Za-z_][\w:.-]*" if root is None else re.escape(root)
    if first := re.search(rf"(?:<\?xml[^<>]{{0,200}}\?>\s*)?<({name})(?=[\s/>])", answer):
        closing = [*re.finditer(rf"</{re.escape(first[1])}\s*>", answer[first.end() :])]
        alone = re.compile(r"[^<>]*/>").match(answer, first.end())
        end = first.end() + closing[-1].end() if closing else alone.end() if alone else None
        if end is not None:
            yield Piece(first.start(), end, answer[first.start() : end])


def without_fences(text: str) -> str:
    """`text` without the marks of code fences and the white space around."""
    return _FENCE_MARKS.sub("", text).strip()


def _fences(answer: str) -> Iterator[tuple[str, Piece]]:
    opening: re.Match[str] | None = None
    for line in _FENCE.finditer(answer):
        told = line[2].strip()
        if opening is None and "`" not in told:
            opening = line
        elif opening is not None and line[1].startswith(opening[1]) and not told:
            yield _fence(answer, opening, line.start(), line.end())
            opening = None
    if opening is not None:
        yield _fence(answer, opening, len(answer), len(answer))


def _fence(answer: str, opening: re.Match[str], body_end: int, end: int) -> tuple[str, Piece]:
    language = _LANGUAGE.match(opening[2].strip())
    body = answer[opening.end() : body_end].strip()
    return language[0].lower() if language else "", Piece(opening.start(), end, body, fenced=True)


def _json_spans(answer: str) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    budget, at = _SEARCHED_CHARACTERS, 0
    per_fault = len(answer) // 100 + 1  # the error counts the lines before it, quickly
    bracket = re.compile(r"\{|^[ \t]*\[", re.MULTILINE)
    while budget > 0 and (found := bracket.search(answer, at)):
        start = found.end() - 1
        try:
            _, end = _DECODER.raw_decode(answer, start)
        except json.JSONDecodeError as error:
            budget -= error.pos - start + per_fault
            at = found.end()
            continue
        except (RecursionError, ValueError):  # too deep; a number too long to be read
            budget -= _DEEP_CHARACTERS
            at = found.end()
            continue
        at = end
        if answer[start] == "{" or not answer[end:].partition("\n")[0].strip():
            spans.append((start, end))
    return spans
