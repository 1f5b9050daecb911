"""Packages and the interpreter: what is installed, and whether it goes together."""

from __future__ import annotations

from collections.abc import Iterator

from hf_recipes.doctor.environment.clashes import clashes
from hf_recipes.doctor.environment.facts import Facts
from hf_recipes.doctor.findings import Finding, Level

_SHOWN = ("torch", "transformers", "trl", "peft", "accelerate", "datasets", "bitsandbytes", "deepspeed", "flash-attn")
_MAKES_A_RUN = ("hf-recipes", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "safetensors")
_OLDEST_PYTHON, _YOUNGEST_TRIED = (3, 11), (3, 13)


def on_packages(facts: Facts) -> Iterator[Finding]:
    """Versions, unmet requirements, known clashes, packages installed twice."""
    versions = facts.packages.versions
    absent = [name for name in ("torch", "transformers", "trl", "peft", "accelerate") if name not in versions]
    if absent:
        yield Finding("error", "packages", f"not installed: {', '.join(absent)}", "pip install hf-recipes")
    shown = ", ".join(f"{name} {versions[name]}" for name in _SHOWN if name in versions)
    troubled = bool(absent)
    for one in facts.packages.unmet:
        troubled = True
        have = f"{one.installed} is installed" if one.installed else "it is not installed"
        level: Level = "error" if one.package in _MAKES_A_RUN else "warning"
        cure = f'pip install "{one.requirement}"'
        yield Finding(level, "packages", f"{one.package} requires {one.requirement}, and {have}", cure)
    for clash in clashes(versions):
        troubled = True
        said = f"{clash.package} {versions[clash.package]} beside {clash.beside} {versions[clash.beside]}: "
        cure = f'pip install "{clash.package}{clash.versions}" ({clash.source})'
        yield Finding("warning", "packages", said + clash.consequence, cure)
    for name in facts.packages.doubled:
        troubled = True
        yield Finding(
            "warning",
            "packages",
            f"{name} is installed twice on this path, and either may be imported",
            f"pip uninstall {name}, until it says that there is none, and install it again",
        )
    if not troubled:
        yield Finding("ok", "packages", shown or "nothing of the stack is installed")


def on_python(facts: Facts) -> Iterator[Finding]:
    """The interpreter."""
    version = facts.machine.python
    shown = ".".join(map(str, version))
    if version[:2] < _OLDEST_PYTHON:
        yield Finding("error", "python", f"{shown} is too old", "use Python 3.11 to 3.13")
    elif version[:2] > _YOUNGEST_TRIED:
        yield Finding("note", "python", f"{shown}: newer than what is tested; wheels may be missing")
    else:
        yield Finding("ok", "python", f"{shown} on {facts.machine.system}")
