"""Packages that scoring alone needs, imported when a score asks for them."""

from __future__ import annotations

import importlib
from types import ModuleType

from hf_recipes.core.errors import UserError


def needed(module: str) -> ModuleType:
    """Import a module of the extra ``evaluate``.

    Raises:
        UserError: it is not installed; the sentence has the command.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError(
            f"{module.partition('.')[0]} is not installed: run pip install 'hf-recipes[evaluate]'."
        ) from None
