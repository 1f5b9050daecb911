"""What the recipe's `strategy` calls each layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hf_recipes.core.errors import UserError, nearest
from hf_recipes.plan.layout import Layout


@dataclass(frozen=True)
class Sizes:
    """Ranks that share one model in other ways than by data, as a recipe gives them (``tensor_parallel_size`` …); None
    leaves a number to the strategy."""

    tensor: int | None = None
    context: int | None = None
    pipeline: int | None = None


AS_NAMED = Sizes()

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

# Strategies that share the rows of a batch alone.
STRATEGIES: tuple[str, ...] = tuple(_LAYOUTS)
# Strategies with a degree of their own → the sizes they take. Ranks that remain are data parallel.
_SIZED: dict[str, tuple[str, ...]] = {"tp": ("tensor",), "cp": ("context",), "pp": ("pipeline", "tensor")}
ALL_STRATEGIES: tuple[str, ...] = (*STRATEGIES, *_SIZED)
_ONE_DEVICE = ("single", "zero2_offload", "zero3_offload", "zero3_offload_all")


def layout_of(strategy: str, ranks: int, nodes: int = 1, sizes: Sizes = AS_NAMED) -> Layout:
    """The layout that a recipe's `strategy` means on so many ranks.

    Args:
        strategy: one of `ALL_STRATEGIES`.
        ranks: devices in all.
        nodes: machines they stand in.
        sizes: that the recipe gives; by themselves ``tp`` and ``cp`` take all ranks of a node, ``pp`` all there are.

    Raises:
        UserError: the name is unknown, or the strategy is for other numbers of ranks or nodes, or of other sizes.
    """
    if strategy not in ALL_STRATEGIES:
        raise UserError(
            f"strategy: '{strategy}' is none of auto, {', '.join(ALL_STRATEGIES)}{nearest(strategy, ALL_STRATEGIES)}."
        )
    if ranks % nodes:
        raise UserError(f"{ranks} devices do not stand evenly in {nodes} nodes: give a multiple of {nodes}.")
    if strategy == "single" and ranks > 1:
        raise UserError(f"strategy: single runs on one device, and {ranks} are given: write ddp, or auto.")
    if strategy not in _ONE_DEVICE and strategy != "hsdp" and ranks == 1:
        raise UserError(f"strategy: {strategy} needs several devices, and one is given: write single, or auto.")
    if strategy == "hsdp" and (nodes == 1 or ranks == nodes):
        raise UserError("strategy: hsdp needs several nodes of several devices each: write fsdp, or auto.")
    check_sizes(strategy, sizes)
    if strategy in _SIZED:
        return _sized(strategy, ranks, nodes, sizes)
    return _LAYOUTS[strategy](ranks, nodes)


def check_sizes(strategy: str, sizes: Sizes) -> None:
    """Raise `UserError` for a size that the strategy (or ``auto``) does not take."""
    for name in ("tensor", "context", "pipeline"):
        if getattr(sizes, name) is not None and name not in _SIZED.get(strategy, ()):
            takers = " or ".join(taker for taker, taken in _SIZED.items() if name in taken)
            raise UserError(
                f"{name}_parallel_size is for strategy: {takers}, and the recipe's is {strategy}: write another "
                "strategy, or leave the size out."
            )


def _sized(strategy: str, ranks: int, nodes: int, sizes: Sizes) -> Layout:
    """``tp`` beside FSDP2, ``cp`` within it, ``pp`` beside DDP. Tensor parallelism talks several times a layer, so that
    it stays within a node."""
    per_node = ranks // nodes
    if strategy == "cp":
        context = _divisor("context", sizes.context or per_node, ranks, "ranks")
        return Layout(ranks, nodes, "fsdp", context=context)
    if strategy == "tp":
        tensor = _divisor("tensor", sizes.tensor or per_node, per_node, "ranks of a node")
        return Layout(ranks, nodes, "fsdp" if ranks > tensor else "none", tensor=tensor)
    tensor = _divisor("tensor", sizes.tensor or 1, per_node, "ranks of a node", least=1)
    stages = _divisor("pipeline", sizes.pipeline or ranks // tensor, ranks // tensor, "groups of ranks")
    return Layout(ranks, nodes, "ddp" if ranks > tensor * stages else "none", tensor=tensor, pipeline=stages)


def _divisor(name: str, size: int, whole: int, words: str, least: int = 2) -> int:
    """A size, where it divides what there is."""
    if size < least or whole % size:
        good = [str(number) for number in range(least, whole + 1) if whole % number == 0]
        cure = f"give {' or '.join(good)}" if good else "give more ranks"
        raise UserError(f"{name}_parallel_size: {size} does not cut {whole} {words} into equal parts: {cure}.")
    return size


def strategy_of(layout: Layout) -> str | None:
    """The name of a layout; None for one that this package plans but does not launch."""
    if layout.tensor * layout.context * layout.pipeline > 1:
        name = "pp" if layout.pipeline > 1 else "cp" if layout.context > 1 else "tp"
        try:
            return name if layout_of(name, layout.ranks, layout.nodes, sizes_of(layout)) == layout else None
        except UserError:
            return None
    names = [name for name, make in _LAYOUTS.items() if make(layout.ranks, layout.nodes) == layout]
    return names[-1] if names else None  # on one node hsdp is fsdp, which comes after it


def sizes_of(layout: Layout) -> Sizes:
    """The sizes that a recipe would give for a layout."""
    return Sizes(*(degree if degree > 1 else None for degree in (layout.tensor, layout.context, layout.pipeline)))


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
