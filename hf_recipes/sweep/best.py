"""`best.yaml`: the winner's recipe, as `hf-recipes sft` takes it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_recipes.core.files import json_safe, write_text
from hf_recipes.recipe.resolve import Recipe

_LEFT_OUT = ("output_dir", "run_name", "resume_from_checkpoint")
_FILES = ("domain", "schema", "general", "choices", "instructions", "tasks", "function")


def write_best(path: Path, recipe: Recipe, why: str) -> None:
    """Write the keys that the trial's recipe and command line gave; files by their whole path, so that it trains from
    anywhere.

    Args:
        path: of the file.
        recipe: of the trial.
        why: what it was best at, one line.
    """
    given = {key: recipe.values[key] for key in recipe.values if key in recipe.given and key not in _LEFT_OUT}
    given = _renamed(given, recipe)
    if "datasets" in given:
        given["datasets"] = [_located(source) for source in recipe.values["datasets"]]
    if isinstance(evaluation := given.get("evaluation"), Mapping):
        given["evaluation"] = {key: _with_whole_paths(key, value) for key, value in evaluation.items()}
    text = yaml.dump(json_safe(given), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
    write_text(path, f"# {why}\n#\n#   hf-recipes sft --config {path}\n\n{text}")


class _Dumper(yaml.SafeDumper):
    """Numbers as our own reader takes them: PyYAML writes 1e-05, which YAML 1.1 calls text, without a point."""


def _plain_float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:float", repr(value))


_Dumper.add_representer(float, _plain_float)


def _renamed(given: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """Keys that `given` names by their old spelling are in the values by the new one."""
    new = {"gradient_checkpointing": "activation_checkpointing"}
    more = {new[key]: recipe.values[new[key]] for key in recipe.given if key in new and new[key] in recipe.values}
    return {**given, **more}


def _located(source: Any) -> Any:
    return {**source, "path": _whole(source["path"])} if isinstance(source, dict) and "path" in source else source


def _with_whole_paths(key: str, value: Any) -> Any:
    """A value of `evaluation`, the files that it names by their whole paths."""
    if key == "format" and isinstance(value, Mapping) and "schema" in value:
        return {**value, "schema": _whole(value["schema"])}
    return _whole(value) if key in _FILES else value


def _whole(value: Any) -> Any:
    """A name of a file that is there, by its whole path; ``FILE:NAME`` and lists of names alike."""
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if not isinstance(value, str):
        return value
    file, colon, name = value.rpartition(":")
    if colon and Path(file).is_file():
        return f"{Path(file).resolve()}:{name}"
    return str(Path(value).resolve()) if value and Path(value).exists() else value
