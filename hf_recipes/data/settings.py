"""The recipe keys that decide what `prepare_data` makes, with their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_DEFAULTS: dict[str, Any] = {
    "max_length": 1024,
    "eval_share": 0.1,
    "general_share": 0.15,
    "share_unit": "rows",
    "assistant_only_loss": True,
    "overlong": "drop",
    "bad_rows": "drop",
    "seed": 42,
}


def data_settings(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Pick `prepare_data`'s keyword arguments out of a recipe's values (``max_length: null`` stays: no limit)."""
    return {key: recipe.get(key, default) for key, default in _DEFAULTS.items()}
