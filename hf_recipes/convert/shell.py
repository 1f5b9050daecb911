"""A shell script or saved command as keys: the flags of its one training command, and the variables set before it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError

_COMMANDS = {
    ("swift", "sft"): "swift",
    ("swift", "pt"): "swift",
    ("llamafactory-cli", "train"): "llamafactory",
    ("lmf", "train"): "llamafactory",
    ("trl", "sft"): "trl",
    ("axolotl", "train"): "axolotl",
}
_ASSIGNMENT = re.compile(r"^([A-Za-z_]\w*)=(.*)$", re.DOTALL)
_COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
_END = re.compile(r"^(?:[;&|]+|\d?[<>].*)$")
_USE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")


def parse_command(text: str, path: Path, parse: Callable[[str], Any]) -> tuple[dict[str, Any], str]:
    """The keys of the training command in `text`, and the tool it is of.

    Several words behind a flag are a list; a flag without one is on. `parse` reads a scalar as YAML does. A variable
    that the script sets is written out where it is used; the others set before the command are keys too.

    Raises:
        UserError: there is none or more than one such command, it reads a file of keys itself, or it cannot be parsed.
    """
    used = set(_USE.findall(text))
    words = _words(text, path)
    starts = [index for index in range(len(words) - 1) if (words[index], words[index + 1]) in _COMMANDS]
    if len(starts) != 1:
        known = ", ".join(" ".join(command) for command in _COMMANDS)
        raise UserError(f"{path}: {len(starts)} training commands found, and one is needed ({known}): keep one.")
    start = starts[0]
    keys: dict[str, Any] = {}
    variables: dict[str, str] = {}
    for name, value in _assignments(words[:start]):
        variables[name] = _expand(value, variables)
        if name not in used:
            keys[name] = parse(variables[name])
    flags = _flags([_expand(word, variables) for word in words[start + 2 :]], path, parse)
    if file := flags.get("config"):
        raise UserError(f"{path}: the command reads its keys from '{file}': convert that file.")
    return keys | flags, _COMMANDS[words[start], words[start + 1]]


def _words(text: str, path: Path) -> list[str]:
    try:
        lines = _COMMENT.sub(r"\1", text).replace("\\\n", " ").replace("\n", " ; ")
        lexer = shlex.shlex(lines, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        lexer.commenters = ""
        return list(lexer)
    except ValueError as error:
        raise UserError(f"{path}: not a readable command ({error}): mend its quotes.") from None


def _assignments(words: list[str]) -> Iterator[tuple[str, str]]:
    """Variables that are set: at the beginning of a command, one after the other."""
    at_start = True
    for word in words:
        found = _ASSIGNMENT.match(word)
        if at_start and found:
            yield found[1], found[2]
        at_start = word == "export" or bool(at_start and found) or set(word) <= set(";&|")


def _expand(word: str, variables: dict[str, str]) -> str:
    return _USE.sub(lambda found: variables.get(found[1], found[0]), word)


def _flags(words: list[str], path: Path, parse: Callable[[str], Any]) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    key = None
    for word in words:
        if _END.match(word):
            break
        if word.startswith("--"):
            name, given, value = word[2:].partition("=")
            key = name.replace("-", "_")
            if key in flags:
                raise UserError(f"{path}: --{key} is given twice: keep one.")
            flags[key] = [parse(value)] if given else []
        elif key is None:
            raise UserError(f"{path}: the command reads its keys from '{word}': convert that file.")
        else:
            flags[key].append(parse(word))
        if "$" in word or "`" in word:
            raise UserError(f"{path}: --{key} is computed by the shell ('{word}'): write its value.")
    return {key: True if not value else value[0] if len(value) == 1 else value for key, value in flags.items()}
