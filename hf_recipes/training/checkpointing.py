"""Activation checkpointing, no more of it than memory asks for.

A checkpointed layer keeps its input and is computed once more in the backward pass: about a quarter of a step's time if
all layers are (Chen et al. 2016, arXiv:1604.06174). So the cheapest of these that fits is taken: none, every fourth,
third or second layer, all but attention (Korthikanti et al. 2022, arXiv:2205.05198), all, all with the kept inputs on
the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.wrapped import base_of
from hf_recipes.training.activations import ActivationCost


@dataclass(frozen=True)
class Checkpointing:
    """One way: what it is called, the Trainer's ``activation_checkpointing_kwargs`` (None: off), and the bytes kept."""

    name: str
    kwargs: dict[str, Any] | None
    kept_bytes: Callable[[ActivationCost, int, int], float]


def _every(layers: int) -> Checkpointing:
    def kept(cost: ActivationCost, rows: int, tokens: int) -> float:
        checkpointed = -(-cost.layers // layers)
        rest = cost.inside(rows, tokens) * (1 - checkpointed / max(1, cost.layers))
        return cost.outside(rows, tokens) + rest + checkpointed * cost.hidden(rows, tokens) + _one(cost, rows, tokens)

    name = {1: "all layers", 2: "every second layer", 3: "every third layer", 4: "every fourth layer"}[layers]
    return Checkpointing(name, {"every_n_layers": layers} if layers > 1 else {}, kept)


def _one(cost: ActivationCost, rows: int, tokens: int) -> float:
    """What one layer keeps while it is computed again."""
    return cost.inside(rows, tokens) / max(1, cost.layers)


def _all_but_attention(cost: ActivationCost, rows: int, tokens: int) -> float:
    return _every(1).kept_bytes(cost, rows, tokens) + cost.layers * cost.hidden(rows, tokens)


def _on_host(cost: ActivationCost, rows: int, tokens: int) -> float:
    return cost.outside(rows, tokens) + cost.hidden(rows, tokens) + _one(cost, rows, tokens)


NONE = Checkpointing("off", None, lambda cost, rows, tokens: cost.outside(rows, tokens) + cost.inside(rows, tokens))
ALL_LAYERS = _every(1)
ON_HOST = Checkpointing("all layers, inputs kept on the host", {"offload": True}, _on_host)
# From the fastest to the one that keeps least.
LADDER: tuple[Checkpointing, ...] = (
    NONE,
    _every(4),
    _every(3),
    _every(2),
    Checkpointing("all but attention", {"selective": True}, _all_but_attention),
    ALL_LAYERS,
    ON_HOST,
)


def choose_checkpointing(
    cost: ActivationCost, rows: int, tokens: int, budget_bytes: float, *, host_is_apart: bool
) -> tuple[Checkpointing, bool]:
    """The first of `LADDER` whose activations fit, and whether they do (else the last one is returned).

    Args:
        cost: From `measure_activations`.
        rows, tokens: The largest micro-batch.
        budget_bytes: Memory that activations may take.
        host_is_apart: The device has memory of its own, so keeping inputs on the host saves some.
    """
    ladder = LADDER if host_is_apart else LADDER[:-1]
    if not cost.layers:
        ladder = LADDER[:1]
    for way in ladder:
        if way.kept_bytes(cost, rows, tokens) <= budget_bytes:
            return way, True
    return ladder[-1], False


def let_selective_reach_the_base(model: Any, kwargs: Mapping[str, Any] | None) -> None:
    """Make TRL's selective checkpointing act on a base under PEFT; to be called before the trainer is built.

    TRL 1.16 wraps `gradient_checkpointing_enable` of the PEFT model, while the Trainer of transformers 5.24 reaches the
    base's `activation_checkpointing_enable`, which then refuses the key. To be removed when TRL wraps the base.
    """
    if (kwargs or {}).get("selective"):
        from trl.models import enable_selective_activation_checkpointing

        enable_selective_activation_checkpointing(base_of(model))
