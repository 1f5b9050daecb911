"""Libraries that only some cleaning rules need."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from hf_recipes.core.errors import UserError


def load(name: str, purpose: str) -> Any:
    """Import a library that is not always installed.

    Args:
        name: the module's name, such as ``ftfy``.
        purpose: what asks for it, for the message.

    Raises:
        UserError: it is not installed; the sentence holds the command that installs it.
    """
    check_installed(name, purpose)
    return importlib.import_module(name)


def check_installed(name: str, purpose: str) -> None:
    """Raise `UserError` with the command to run when the library `name` is missing; imports nothing."""
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{purpose} needs {package}, which is not installed: run pip install 'hf-recipes[clean]'.")
