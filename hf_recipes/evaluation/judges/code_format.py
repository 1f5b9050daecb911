"""Code as a format of answers: it parses. Nothing is run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable
from typing import Any

from hf_recipes.core.errors import UserError

_MAX_CHARACTERS = 200_000  # a second of parsing at worst


def code_fault(language: Any) -> Callable[[str], str]:
    """A function that says why a text is not code of `language`.

    Args:
        language: ``python``, or a name that tree-sitter knows, where `tree_sitter_language_pack` is installed.

    Raises:
        UserError: no parser for it is here.
    """
    if language == "python":
        return python_fault
    parser = _tree_sitter(language) if isinstance(language, str) else None
    if parser is None:
        raise UserError(
            f"evaluation.format.code: no parser for {language!r} is here: python and json always are, many more with"
            " pip install tree-sitter-language-pack."
        )
    return lambda text: _tree_fault(text, parser, language)


def python_fault(text: str) -> str:
    """Why `text` is not Python. A bare word parses as well, but is more likely prose: that is no code."""
    if len(text) > _MAX_CHARACTERS:
        return f"longer than {_MAX_CHARACTERS:,} characters, not parsed"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except SyntaxError as error:
        return f"not Python: {error.msg}" + (f" (line {error.lineno})" if error.lineno else "")
    except (RecursionError, MemoryError):
        return "nested too deeply"
    except ValueError as error:  # NUL characters, half a surrogate pair
        return f"not Python: {error}"
    if all(isinstance(part, ast.Expr) and isinstance(part.value, (ast.Name, ast.Constant)) for part in tree.body):
        return "no code: nothing but words or constants"
    return ""


def _tree_sitter(language: str) -> Any:
    try:
        from tree_sitter_language_pack import get_parser
    except ImportError:
        return None
    try:
        return get_parser(language)  # type: ignore[arg-type, unused-ignore]
    except Exception:  # each version raises another one for a name that it does not know
        return None


def _tree_fault(text: str, parser: Any, language: str) -> str:
    root = parser.parse(text.encode("utf-8", "replace")).root_node
    return f"not {language}: it has syntax errors" if root.has_error else ""
