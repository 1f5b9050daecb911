"""What verbs that take recipe keys do about a flag that is neither."""

from __future__ import annotations

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
