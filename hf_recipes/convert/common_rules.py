"""Rules for what several tools have under names of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hf_recipes.convert.answers import Answer, Config, Rule, is_on, none, number_of, same, taken

_STARTS = ("gaussian", "orthogonal", "pissa", "olora", "eva")
_WHOLE = "of each source; groups and duplicates stay together"


def attention(implementation: str) -> Answer:
    """``attn_implementation``, with what it needs."""
    needs = "needs the package flash-attn and a GPU; sdpa needs neither" if "flash_attention" in implementation else ""
    return taken({"attn_implementation": implementation}, needs)


def held_out(theirs: str) -> Rule:
    """A share of the rows for the eval loss; from 1 on a number of them, which a recipe cannot ask for."""

    def rule(value: Any, config: Config) -> Answer:
        size = number_of(value, theirs, config)
        if size < 1:
            return taken({"eval_share": size}, _WHOLE if size else "")
        return none(f"{size:g} rows cannot be asked for: write eval_share as their share of the data (0.1 until then)")

    return rule


def early_stopping(theirs: str) -> Rule:
    """Evaluations without a better loss after which the run stops."""

    def rule(value: Any, config: Config) -> Answer:
        watch = {"overfit_patience": int(number_of(value, theirs, config)), "overfit_stop": True}
        return taken({"watch": watch}, "stops when eval loss stays 0.01 above its best while the training loss falls")

    return rule


def dora(method_of: Callable[[Config], str]) -> Rule:
    """DoRA, which is trained on a 16-bit base."""

    def rule(value: Any, config: Config) -> Answer:
        if not is_on(value):
            return same("off, as here")
        if method_of(config) != "dora":
            return none("DoRA is trained on a 16-bit base only: method: dora leaves the 4 or 8 bits")
        return taken({"method": "dora"})

    return rule


def lora_start(value: Any, config: Config) -> Answer:
    """How LoRA's matrices start, by PEFT's names."""
    if is_on(value):
        return taken({"init_lora_weights": "default"})
    if value in _STARTS or str(value).startswith("pissa_niter_"):
        return taken({"init_lora_weights": str(value)})
    return none(f"starts are default, {', '.join(_STARTS)}: LoRA starts as usual")


def only_where(holds: Callable[[Config], bool], rule: Rule, what: str) -> Rule:
    """A rule for a key that acts only where something `holds`; elsewhere it does nothing, there too."""
    idle = same(f"acts with {what} only, there too")
    return lambda value, config: rule(value, config) if holds(config) else idle
