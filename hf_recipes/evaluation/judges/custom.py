"""A score of the user's own: a Python function in a file that the recipe names."""

from __future__ import annotations

import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.log import logger

Score = Callable[[str, str, Mapping[str, Any]], dict[str, float]]


def load_score(spec: str) -> Score:
    """Load ``file.py:function`` and return it with its errors made to name their row.

    The function takes the answer, the reference and the row, and returns numbers by name (or one number, which gets
    the function's name). Loading runs the file's code, as the user asked by naming it; that is told.

    Args:
        spec: path of a Python file, a colon, the function's name.

    Raises:
        UserError: the file or function is not there, or the file fails on import. The returned function raises it
            where the user's fails, or returns anything but finite numbers by name.
    """
    path, name = _parts(spec)
    function = _function(path, name)

    def score(answer: str, reference: str, row: Mapping[str, Any]) -> dict[str, float]:
        where = f"{path}:{name} on row {row['number']}" if "number" in row else f"{path}:{name}"
        try:
            result = function(answer, reference, row)
        except (Exception, SystemExit) as error:  # sys.exit() in it must not end the evaluation as if all were well
            line = _line_within(error, path)
            raise UserError(f"{where} failed{line} with {_told(error)}. Correct the function.") from error
        return _checked(where, name, result)

    return score


def _parts(spec: str) -> tuple[Path, str]:
    file, colon, name = spec.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise UserError(f"evaluation.function: '{spec}' is not of the form file.py:function.")
    if not Path(file).is_file():
        raise UserError(f"The file '{file}' of the score '{spec}' does not exist: correct the path in the recipe.")
    return Path(file), name


def _function(path: Path, name: str) -> Callable[..., Any]:
    logger.info(f"Scores by {path}:{name}, whose code runs here because the recipe names it.")
    # A name of its own, so that it can neither hide an installed module nor be hidden by one.
    module_name = f"hf_recipes_score_{path.stem}_{abs(hash(str(path.resolve())))}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is not a Python file: name one that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        line = _line_within(error, path)
        raise UserError(f"{path} cannot be loaded{line}: {_told(error)}.") from error
    function = getattr(module, name, None)
    if not callable(function):
        names = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        raise UserError(f"{path} has no function '{name}'{nearest(name, names)}: it has {', '.join(names) or 'none'}.")
    return function


def _told(error: BaseException) -> str:
    """Kind and message on one line, and no longer than one."""
    message = " ".join(str(error).split()).rstrip(".")
    return f"{type(error).__name__}: {message[:200]}" if message else type(error).__name__


def _line_within(error: BaseException, path: Path) -> str:
    """Where in the user's own file it went wrong; the innermost line of it."""
    if isinstance(error, SyntaxError):
        return f" at line {error.lineno}"
    traceback, line = error.__traceback__, ""
    while traceback is not None:
        if Path(traceback.tb_frame.f_code.co_filename).resolve() == path.resolve():
            line = f" at line {traceback.tb_lineno}"
        traceback = traceback.tb_next
    return line


def _checked(where: str, name: str, result: Any) -> dict[str, float]:
    scores = result if isinstance(result, Mapping) else {name: result}
    checked = {}
    for key, value in scores.items():
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not isinstance(key, str) or isinstance(value, str) or not math.isfinite(number):
            shown = " ".join(repr(value).split())[:80]
            raise UserError(f"{where} returned {key!r}: {shown}, not a finite number under a name.")
        if not key.strip() or not key.isprintable() or set(key) & set("<>=,:"):
            raise UserError(f"{where} returned a score named {key!r}: a name has none of < > = , : and no line break.")
        checked[key] = number
    if not checked:
        raise UserError(f"{where} returned no score: return numbers by name, the same names for every row.")
    return checked
