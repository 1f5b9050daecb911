"""Regular expressions on answers, within a time: a pattern with nested repeats may take ages on the wrong answer.

The package `regex`, which transformers needs anyway, can be told to give up after some seconds; `re` cannot.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.evaluation.judges.pieces import Piece, fenced

MATCH_SECONDS = 2.0


class TooSlow(Exception):
    """A pattern found no end; the message says so in words for the user."""


class RegexFormat:
    """A pattern that the whole answer must match.

    Raises:
        UserError: it is no pattern.
    """

    def __init__(self, pattern: str, seconds: float = MATCH_SECONDS) -> None:
        import regex

        try:
            self._pattern = regex.compile(pattern)
        except regex.error as error:
            raise UserError(f"evaluation.format.regex '{pattern}' is not a regular expression: {error}.") from None
        self._seconds = seconds

    def fault(self, text: str) -> str:
        """Why `text` does not match from its first character to its last."""
        try:
            found = within(self._pattern.fullmatch, text, self._seconds)
        except TooSlow as slow:
            return str(slow)
        return "" if found else f"does not match {self._pattern.pattern}"

    def pieces(self, answer: str) -> Iterator[Piece]:
        """Contents of code fences, then the first place that matches."""
        yield from fenced(answer)
        try:
            found = within(self._pattern.search, answer, self._seconds)
        except TooSlow:
            return
        if found and found[0]:
            yield Piece(found.start(), found.end(), found[0])


def search(pattern: str, text: str, *, seconds: float = MATCH_SECONDS) -> bool:
    """Whether `pattern` matches anywhere in `text`.

    Raises:
        TooSlow: it took longer than `seconds`.
    """
    import regex

    return within(regex.compile(pattern).search, text, seconds) is not None


def within(method: Any, text: str, seconds: float) -> Any:
    """Call a method of a compiled pattern, for at most `seconds`.

    Raises:
        TooSlow: it took longer.
    """
    try:
        return method(text, timeout=seconds)
    except TimeoutError:
        raise TooSlow(f"not matched within {seconds:g} s: the pattern repeats a repeat; simplify it") from None
