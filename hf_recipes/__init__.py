"""hf_recipes: plan, inspect, train, watch, verify, evaluate and merge fine-tunes on the Hugging Face stack.

Names are imported on first use, so `import hf_recipes` loads neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_EXPORTS: dict[str, str] = {
    "UserError": "hf_recipes.core.errors",
    "CheckFailed": "hf_recipes.core.errors",
}

__all__ = ["__version__", *_EXPORTS]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'hf_recipes' has no attribute '{name}'")
    value = getattr(importlib.import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


if TYPE_CHECKING:
    from hf_recipes.core.errors import CheckFailed, UserError
