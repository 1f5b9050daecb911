"""Which versions of Python and of the stack are installed."""

from __future__ import annotations

import importlib.metadata
import platform

# What decides how a run trains, and how what it wrote is read.
STACK = (
    *("hf-recipes", "torch", "transformers", "trl", "peft", "accelerate", "datasets"),
    *("bitsandbytes", "deepspeed", "safetensors", "numpy"),
)


def stack_versions() -> dict[str, str]:
    """Python's version and those of `STACK`, without what is not installed."""
    found = {"python": platform.python_version()}
    for package in STACK:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
