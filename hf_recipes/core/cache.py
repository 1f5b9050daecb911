"""Where this package keeps what it may make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """``$HF_RECIPES_CACHE``, else ``hf_recipes`` under the user's cache. It may be deleted at any time."""
    if ours := os.environ.get("HF_RECIPES_CACHE"):
        return Path(ours).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hf_recipes"


def data_cache_directory() -> Path:
    """Where prepared samples are kept: ``$HF_RECIPES_DATA_CACHE``, else ``data`` in the cache directory."""
    if ours := os.environ.get("HF_RECIPES_DATA_CACHE"):
        return Path(ours).expanduser()
    return cache_directory() / "data"
