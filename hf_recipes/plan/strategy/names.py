"""What the recipe's `strategy` calls each layout."""

from __future__ import annotations

from collections.abc import Callable

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.plan.layout import Layout

# Strategy → its layout on so many ranks of so many nodes. In the order in which they are preferred where they cost the
# same: from the one that shares least, and is simplest to debug, to the one that shares most.
_LAYOUTS: dict[str, Callable[[int, int], Layout]] = {
    "single": lambda ranks, nodes: Layout(ranks, nodes),
    "ddp": lambda ranks, nodes: Layout(ranks, nodes, "ddp"),
    "zero1": lambda ranks, nodes: Layout(ranks, nodes, "zero1"),
    "zero2": lambda ranks, nodes: Layout(ranks, nodes, "zero2"),
    "hsdp": lambda ranks, nodes: Layout(ranks, nodes, "fsdp", replicas=nodes),
    "fsdp": lambda ranks, nodes: Layout(ranks, nodes, "fsdp"),
    "zero3": lambda ranks, nodes: Layout(ranks, nodes, "zero3"),
    "zero2_offload": lambda ranks, nodes: Layout(ranks, nodes, "zero2", offload_optimizer=True),
    "zero3_offload": lambda ranks, nodes: Layout(ranks, nodes, "zero3", offload_optimizer=True),
    "fsdp_offload": lambda ranks, nodes: Layout(ranks, nodes, "fsdp", offload_optimizer=True, offload_weights=True),
    "zero3_offload_all": lambda ranks, nodes: Layout(
        ranks, nodes, "zero3", offload_optimizer=True, offload_weights=True
    ),
}

_WORDS = {
    "single": "one device",
    "ddp": "DDP",
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP2",
    "hsdp": "FSDP2 inside each node, copies across nodes",
    "zero3": "ZeRO-3",
    "zero2_offload": "ZeRO-2 with the optimizer on the host",
    "zero3_offload": "ZeRO-3 with the optimizer on the host",
    "zero3_offload_all": "ZeRO-3 with optimizer and weights on the host",
    "fsdp_offload": "FSDP2 with optimizer and weights on the host",
}

STRATEGIES: tuple[str, ...] = tuple(_LAYOUTS)


def layout_of(strategy: str, ranks: int, nodes: int = 1) -> Layout:
    """The layout that a recipe's `strategy` means on so many ranks.

    Args:
        strategy: one of `STRATEGIES`.
        ranks: devices in all.
        nodes: machines they stand in.

    Raises:
        UserError: the name is unknown, or the strategy is for other numbers of ranks or nodes.
    """
    if strategy not in _LAYOUTS:
        raise UserError(
            f"strategy: '{strategy}' is none of auto, {', '.join(STRATEGIES)}{nearest(strategy, STRATEGIES)}."
        )
    if ranks % nodes:
        raise UserError(f"{ranks} devices do not stand evenly in {nodes} nodes: give a multiple of {nodes}.")
    if strategy == "single" and ranks > 1:
        raise UserError(f"strategy: single runs on one device, and {ranks} are given: write ddp, or auto.")
    if strategy in ("ddp", "zero1", "zero2", "fsdp", "zero3", "fsdp_offload") and ranks == 1:
        raise UserError(f"strategy: {strategy} needs several devices, and one is given: write single, or auto.")
    if strategy == "hsdp" and (nodes == 1 or ranks == nodes):
        raise UserError("strategy: hsdp needs several nodes of several devices each: write fsdp, or auto.")
    return _LAYOUTS[strategy](ranks, nodes)


def strategy_of(layout: Layout) -> str | None:
    """The name of a layout; None for one that this package plans but does not launch (tensor, context, pipeline)."""
    names = [name for name, make in _LAYOUTS.items() if make(layout.ranks, layout.nodes) == layout]
    return names[-1] if names else None  # on one node hsdp is fsdp, which comes after it


def describe(layout: Layout) -> str:
    """``ZeRO-2 over 8 ranks`` and the like."""
    degrees = [
        f"{name} parallelism {degree}"
        for name, degree in (("tensor", layout.tensor), ("context", layout.context), ("pipeline", layout.pipeline))
        if degree > 1
    ]
    if not degrees:
        words = _WORDS[strategy_of(layout) or "fsdp"]
        return words if layout.ranks == 1 else f"{words} over {layout.ranks} ranks"
    sharded = f" × {layout.sharding.upper()} {layout.data_parallel}" if layout.data_parallel > 1 else ""
    return " × ".join(degrees) + sharded
