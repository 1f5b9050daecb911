"""Names of modules a method is asked to act on, held against those the model has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hf_recipes.core.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import nn

ALL_LINEAR = "all-linear"


def check_targets(model: nn.Module, targets: str | Sequence[str] | None, key: str) -> None:
    """Raise `UserError` for a target that matches no module, with the names there are.

    PEFT refuses only when *no* target matches; a misspelt one among several would be left out in silence.

    Args:
        model: The base model.
        targets: Module names or their ends, as PEFT matches them; a plain text is a regular expression and is left to
            PEFT, as is ``all-linear``.
        key: The recipe key they were given by, for the sentence.
    """
    if targets is None or isinstance(targets, str) or list(targets) == [ALL_LINEAR]:
        return
    names = {name for name, _ in model.named_modules()}
    leaves = sorted({name.rsplit(".", 1)[-1] for name, module in model.named_modules() if hasattr(module, "weight")})
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            raise UserError(
                f"{key}: '{target}' is no module of {type(model).__name__}{nearest(target, leaves)}: "
                f"choose from {', '.join(leaves)}, or write {ALL_LINEAR}."
            )
