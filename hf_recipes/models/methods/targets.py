"""Names of modules a method is asked to act on, held against those the model has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.core.log import logger
from hf_recipes.models.methods.values import names

if TYPE_CHECKING:
    from torch import nn

ALL_LINEAR = "all-linear"


def resolve_targets(
    model: nn.Module,
    targets: str | Sequence[str] | None,
    key: str,
    *,
    accepts: Callable[[nn.Module], bool],
    rule: str,
) -> str | list[str] | None:
    """`targets` as PEFT is to take them, once each of them is known to reach modules that can be adapted.

    PEFT refuses only when *no* target matches; a misspelt one among several would be left out in silence.

    Args:
        model: The base model.
        targets: Module names or their ends; a plain text is one such name if there is one, else a regular expression
            that must match whole names; ``all-linear``; None for PEFT's own choice.
        key: The recipe key they were given by, for the sentence.
        accepts: Whether the method can act on a module.
        rule: That in words, such as "IA3 scales linear layers only".

    Returns:
        A list of names, a regular expression, ``all-linear`` or None.

    Raises:
        UserError: nothing is named, a name or expression matches no module, or one that cannot be adapted: the output
            head never can, for the loss reads its weight and does not call it. With the names that can be used.
    """
    if targets is None:
        return None
    listed = names(key, targets)
    usable = _usable_names(model, accepts)
    if not listed:
        raise UserError(f"{key} names no module: choose from {', '.join(usable)}, or write {ALL_LINEAR}.")
    if any(name.lower() == ALL_LINEAR for name in listed):
        if len(listed) > 1:
            raise UserError(f"{key}: '{ALL_LINEAR}' stands alone, for it takes in the rest: remove the other names.")
        return ALL_LINEAR
    modules = {name: module for name, module in model.named_modules() if name}
    pattern = targets if isinstance(targets, str) and not ending_with(targets, modules) else None
    for target in listed:
        matched = fully_matching(target, modules, key) if pattern else ending_with(target, modules)
        if not matched:
            raise UserError(
                f"{key}: '{target}' is no module of {type(model).__name__}{nearest(target, usable)}: "
                f"choose from {', '.join(usable)}, or write {ALL_LINEAR}."
            )
        _check_kinds(model, {name: modules[name] for name in matched}, target, key, accepts, rule, usable)
    return pattern or list(listed)


def ending_with(end: str, all_names: Iterable[str]) -> list[str]:
    """The names that are `end` or end with it after a dot, as PEFT matches them."""
    return [name for name in all_names if name == end or name.endswith(f".{end}")]


def fully_matching(pattern: str, all_names: Iterable[str], key: str) -> list[str]:
    """The names that `pattern` matches as a whole.

    Raises:
        UserError: it is no regular expression.
    """
    try:
        return [name for name in all_names if re.fullmatch(pattern, name)]
    except re.error as error:
        raise UserError(
            f"{key}: '{pattern}' is no regular expression ({error}): mend it, or give a list of names."
        ) from None


def is_linear(module: Any) -> bool:
    """A linear layer: quantised ones and GPT-2's transposed ``Conv1D`` included."""
    from torch import nn

    widths = (getattr(module, "out_features", None), getattr(module, "nf", None))
    return isinstance(module, nn.Linear) or any(isinstance(width, int) for width in widths)


def check_modules_to_save(model: nn.Module, wanted: Sequence[str], key: str) -> None:
    """Hold names of modules that are to be trained in full against the model; PEFT skips what it does not find.

    Warns where PEFT, which compares ends of names without regard to dots, takes more modules than are meant: ``norm``
    is the end of ``input_layernorm`` too.

    Raises:
        UserError: a name matches no module, or one that holds no weights or is a mere list.
    """
    from torch import nn

    modules = {name: module for name, module in model.named_modules() if name}
    leaves = sorted({_leaf(name) for name, module in modules.items() if list(module.parameters(recurse=False))})
    for name in wanted:
        matched = ending_with(name, modules)
        if not matched:
            raise UserError(
                f"{key}: '{name}' is no module of {type(model).__name__}{nearest(name, leaves)}: choose from "
                f"{', '.join(leaves)}, or give a longer end of the name."
            )
        for each in matched:
            module = modules[each]
            if isinstance(module, (nn.ModuleList, nn.ModuleDict)) or not list(module.parameters()):
                raise UserError(
                    f"{key}: '{each}' is a {type(module).__name__} without weights of its own: name modules that have "
                    f"some, such as {', '.join(leaves)}."
                )
        more = sorted({_leaf(each) for each in modules if each.endswith(name)} - {_leaf(each) for each in matched})
        if more:
            logger.warning(
                "%s: '%s' is also the end of %s, which PEFT trains in full too: write %s if they are not meant.",
                key,
                name,
                ", ".join(more),
                matched[0],
            )


def output_head(model: Any) -> nn.Module | None:
    """The head whose weight the loss reads; None for a classifier."""
    find = getattr(model, "get_output_embeddings", None)
    head: nn.Module | None = find() if find is not None else None
    return head


def _usable_names(model: nn.Module, accepts: Callable[[nn.Module], bool]) -> list[str]:
    head = output_head(model)
    return sorted({_leaf(n) for n, module in model.named_modules() if n and accepts(module) and module is not head})


def _check_kinds(
    model: nn.Module,
    matched: Mapping[str, nn.Module],
    target: str,
    key: str,
    accepts: Callable[[nn.Module], bool],
    rule: str,
    usable: Sequence[str],
) -> None:
    head = output_head(model)
    for name, module in matched.items():
        if module is head:
            raise UserError(
                f"{key}: '{target}' takes in the output head, which cannot have an adapter, for the loss computes the "
                f"head itself, from its weight: remove it (there are {', '.join(usable)})."
            )
        if not accepts(module):
            raise UserError(
                f"{key}: '{name}' is a {type(module).__name__}, and {rule}: choose from {', '.join(usable)}."
            )


def _leaf(name: str) -> str:
    return name.rsplit(".", 1)[-1]
