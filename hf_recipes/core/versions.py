"""Which versions of Python and of the stack are installed."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

# What decides how a run trains, and how what it wrote is read.
STACK = (
    *("hf-recipes", "torch", "transformers", "trl", "peft", "accelerate", "datasets"),
    *("bitsandbytes", "deepspeed", "safetensors", "numpy"),
)


def stack_versions() -> dict[str, str]:
    """Python's version and those of `STACK`, without what is not installed."""
    found = {package: installed_version(package) for package in STACK}
    return {"python": platform.python_version()} | {package: version for package, version in found.items() if version}


def installed_version(package: str) -> str | None:
    """The version of an installed package, by its name on the package index; None where it is not installed.

    Read from the name of its ``.dist-info`` folder (Binary distribution format, "The .dist-info directory"), as
    `importlib.metadata` takes 60 ms to import, a third of what `--help` may take; that is asked where no folder says.
    """
    folder = package.replace("-", "_")
    for entry in sys.path:
        for info in Path(entry or ".").glob(f"{folder}-*.dist-info"):
            return info.name.removesuffix(".dist-info").removeprefix(f"{folder}-")
    import importlib.metadata

    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
