"""Flags that several verbs have in common, and what is said to one that is neither a flag nor a recipe key."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches

from hf_recipes.core.errors import UserError, nearest


def refuse_misspelt_flags(verb: str, flags: Sequence[str], arguments: Sequence[str]) -> None:
    """A flag that is no recipe key and looks most like one of the verb's own is told so, not likened to a key.

    Args:
        verb: whose flags they are.
        flags: its own, without the dashes.
        arguments: what is left of the command line: recipe keys, if all is well.

    Raises:
        UserError: one of them is misspelt.
    """
    from hf_recipes.recipe.key_table import load_key_table

    keys = load_key_table()
    for argument in arguments:
        name = argument.removeprefix("--").partition("=")[0].partition(".")[0]
        if not argument.startswith("--") or name in keys:
            continue
        if set(get_close_matches(name, [*keys, *flags], n=1)) & set(flags):
            raise UserError(f"--{name} is no option of `hf-recipes {verb}`{nearest(name, flags)}.")


def require_recipe(config: str | None) -> None:
    """Raise `UserError` where ``--config`` names no recipe."""
    if not config:
        raise UserError("No recipe given: write --config RECIPE (`hf-recipes ls` lists the shipped ones).")


def positive(text: str) -> int:
    """A count from 1 on, as `argparse` reads a flag's value."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive whole number")
    return value
