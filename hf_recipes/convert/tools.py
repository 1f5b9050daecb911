"""The tools whose configurations are understood, and how one tells whose a file is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from hf_recipes.convert.axolotl import AXOLOTL
from hf_recipes.convert.engine import Tool
from hf_recipes.convert.llamafactory import LLAMAFACTORY
from hf_recipes.convert.swift import SWIFT
from hf_recipes.convert.trl import TRL
from hf_recipes.core.errors import UserError

TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in (AXOLOTL, LLAMAFACTORY, SWIFT, TRL)}


def tell_tool(keys: Iterable[str], path: Path) -> Tool:
    """Whose configuration has these keys: the tool of which most telling keys are there.

    Raises:
        UserError: none are there, or as many of two tools; or it is a recipe already.
    """
    names = set(keys)
    if "method" in names and "model_name_or_path" in names:
        raise UserError(f"{path}: this is a recipe already: `hf-recipes sft --config {path}` trains it.")
    counts = {tool.name: len(names & tool.telling) for tool in TOOLS.values()}
    best = max(counts.values())
    winners = [name for name, count in counts.items() if count == best]
    if best and len(winners) == 1:
        return TOOLS[winners[0]]
    what = f"it could be of {' or '.join(winners)}" if best else f"no key tells of {', '.join(TOOLS)}"
    raise UserError(f"{path}: whose configuration this is cannot be told ({what}): give --from.")
