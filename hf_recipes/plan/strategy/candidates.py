"""All that is worth considering: layouts in the order of rising sharing, and how each may work through a batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hf_recipes.core.errors import UserError
from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import Checkpointing, Loss, TrainingSettings
from hf_recipes.plan.strategy.machines import Machines
from hf_recipes.plan.strategy.names import AS_NAMED, STRATEGIES, Sizes, check_sizes, layout_of, strategy_of

# From the fastest to the one that keeps least.
CHECKPOINTINGS: tuple[Checkpointing, ...] = ("off", "every_4", "every_3", "every_2", "selective", "all", "host")
# Rows longer than this are worth splitting over devices.
_LONG_ROW = 16_384
# A network this slow (about 100 Gb/s a node) is what pipelines are for: they send one hidden state, not all weights.
_SLOW_NETWORK = 12.5e9


@dataclass(frozen=True)
class Wishes:
    """What the user has decided already; None leaves it open.

    Attributes:
        strategy: a name of `names.ALL_STRATEGIES`.
        sizes: degrees that the strategy takes.
        micro_batch: rows of a forward pass.
        checkpointing: of activations.
        offload: whether states, weights and kept activations may go to the host.
        headroom: share of a device's memory kept free, for what no estimate knows.
    """

    strategy: str | None = None
    sizes: Sizes = AS_NAMED
    micro_batch: int | None = None
    checkpointing: Checkpointing | None = None
    offload: bool = True
    headroom: float = 0.05


ALL_OPEN = Wishes()


@dataclass(frozen=True)
class Candidate:
    """One way to run the job: `settings` with micro-batch, accumulation and checkpointing filled in."""

    layout: Layout
    settings: TrainingSettings

    @property
    def global_batch(self) -> int:
        """Rows that meet in one optimizer step."""
        return self.settings.micro_batch * self.settings.accumulation * self.layout.data_parallel


def launched_layouts(settings: TrainingSettings, machines: Machines, wishes: Wishes) -> list[Layout]:
    """The layouts this package can launch, in the order of `names.STRATEGIES`.

    Raises:
        UserError: the wished strategy does not exist for this number of devices, or cannot train this job.
    """
    ranks, nodes = machines.ranks, machines.nodes
    check_sizes(wishes.strategy or "auto", wishes.sizes)
    if wishes.strategy:
        layout = layout_of(wishes.strategy, ranks, nodes, wishes.sizes)
        if objection := _objection(wishes.strategy, settings):
            raise UserError(f"strategy: {wishes.strategy} {objection}: write another one, or auto.")
        return [layout]
    names = [name for name in STRATEGIES if _suits(name, machines) and not _objection(name, settings)]
    layouts = [layout_of(name, ranks, nodes) for name in names]
    offload = wishes.offload and machines.host_link > 0
    return [layout for layout in layouts if offload or not (layout.offload_optimizer or layout.offload_weights)]


def _suits(strategy: str, machines: Machines) -> bool:
    """Whether a strategy makes sense on so many devices."""
    if machines.ranks == 1:
        return strategy in ("single", "zero2_offload", "zero3_offload_all")
    if strategy == "hsdp":
        return machines.nodes > 1 and machines.per_node > 1
    return strategy != "single"


def _objection(strategy: str, settings: TrainingSettings) -> str | None:
    """Why a strategy cannot train a job at all."""
    if strategy in ("tp", "pp") and (settings.quantization or settings.method not in ("full", "lora")):
        return f"trains method: full or lora, and the recipe's is {settings.method}"
    if settings.quantization == "int8" and strategy.startswith(("fsdp", "hsdp", "zero3")):
        return "cannot shard a base in 8 bits"
    if settings.quantization and strategy.startswith("zero3"):
        return "has not been tried over a quantised base, whose packed weights DeepSpeed would have to cut"
    if "offload" in strategy and not plain_adam(settings.optimizer):
        return f"updates weights on the CPU with Adam, which optim: {settings.optimizer} is not"
    if strategy.startswith(("fsdp", "hsdp")) and of_bitsandbytes(settings.optimizer):
        return f"hands the optimizer sharded tensors, which optim: {settings.optimizer} does not take"
    return None


def plain_adam(optimizer: str) -> bool:
    """Whether the Trainer's ``optim`` is PyTorch's Adam, whose step DeepSpeed can do on the CPU."""
    return optimizer in ("adamw_torch", "adamw_torch_fused")


def of_bitsandbytes(optimizer: str) -> bool:
    """Whether the Trainer's ``optim`` is one of bitsandbytes', whose kernels know nothing of sharded tensors."""
    if optimizer.startswith(("adamw_torch", "galore", "apollo")):
        return False
    return any(part in optimizer for part in ("8bit", "32bit", "bnb", "paged", "ademamix"))


def planned_layouts(geometry: Geometry, settings: TrainingSettings, machines: Machines) -> Iterator[Layout]:
    """Layouts for where nothing else fits. Tensor parallelism inside a node, on a fast link; context parallelism for
    long rows; pipelines only over several nodes with a slow network (those beside FSDP other tools launch)."""
    ranks, nodes = machines.ranks, machines.nodes
    if machines.link and machines.per_node > 1:
        for tensor in _degrees(machines.per_node):
            if _splits_heads(geometry, tensor) and _cuts_matrices(settings, beside=ranks // tensor):
                yield _tensor_fsdp(ranks, nodes, tensor)
    if settings.tokens >= _LONG_ROW:
        for context in _degrees(machines.per_node):
            if settings.tokens % (2 * context) == 0:
                yield Layout(ranks, nodes, "fsdp", context=context)
    if nodes > 1 and machines.network <= _SLOW_NETWORK:
        for pipeline in _degrees(nodes):
            if geometry.layers % pipeline == 0:
                for tensor in (1, *_degrees(machines.per_node)):
                    if tensor == 1 or (machines.link and _splits_heads(geometry, tensor)):
                        yield replace(_tensor_fsdp(ranks, nodes, tensor, pipeline), pipeline=pipeline)


def _cuts_matrices(settings: TrainingSettings, beside: int) -> bool:
    """Whether tensor parallelism trains this method (see `training.parallelism`), with so many data-parallel ranks."""
    if settings.quantization:
        return False
    return settings.method == "full" or (settings.method == "lora" and beside == 1)


def _tensor_fsdp(ranks: int, nodes: int, tensor: int, pipeline: int = 1) -> Layout:
    return Layout(ranks, nodes, "fsdp" if ranks > tensor * pipeline else "none", tensor=tensor)


def _degrees(most: int) -> list[int]:
    """Divisors above 1."""
    return [degree for degree in range(2, most + 1) if most % degree == 0]


def _splits_heads(geometry: Geometry, degree: int) -> bool:
    return geometry.heads % degree == 0 and geometry.kv_heads % degree == 0


def reachable_batch(wanted: int, data_parallel: int, micro_batch: int | None = None) -> int:
    """The global batch nearest to the wanted one that so many ranks can have: a multiple of the ranks (and of a given
    micro-batch on each), the larger of two equally near."""
    unit = data_parallel * (micro_batch or 1)
    return max(unit, (wanted + unit // 2) // unit * unit)


def ways(
    settings: TrainingSettings, layout: Layout, global_batch: int, wishes: Wishes, *, host_is_apart: bool = True
) -> list[Candidate]:
    """All micro-batches (the divisors of a rank's share of the batch) with all checkpointings, for one layout.

    Args:
        settings: the job; micro-batch, accumulation and checkpointing are replaced.
        layout: how it lies over devices.
        global_batch: wanted rows of an optimizer step.
        wishes: what is decided already.
        host_is_apart: the device has memory of its own, so that keeping inputs on the host saves some.
    """
    share = reachable_batch(global_batch, layout.data_parallel, wishes.micro_batch) // layout.data_parallel
    sizes = [wishes.micro_batch] if wishes.micro_batch else [size for size in range(1, share + 1) if share % size == 0]
    sizes = [size for size in sizes if share // size >= layout.pipeline] or sizes[:1]  # 1F1B needs one a stage
    kinds = (
        [wishes.checkpointing] if wishes.checkpointing else _checkpointings(settings, wishes.offload and host_is_apart)
    )
    job = replace(settings, loss=_loss(settings, layout))
    return [
        Candidate(layout, replace(job, micro_batch=size, accumulation=share // size, checkpointing=checkpointing))
        for size in sizes
        for checkpointing in kinds
    ]


def _loss(settings: TrainingSettings, layout: Layout) -> Loss:
    """This package's loss computes the head itself, which it cannot where the head is sharded: TRL's is used then."""
    shards_head = layout.sharding in ("zero3", "fsdp") or layout.tensor > 1
    return "trl_chunked" if shards_head and settings.loss == "chunked" else settings.loss


def _checkpointings(settings: TrainingSettings, host: bool) -> tuple[Checkpointing, ...]:
    """A trained prefix lives in the cache, which a layer that is computed again does not see."""
    if settings.method == "prefix":
        return ("off",)
    return CHECKPOINTINGS if host else CHECKPOINTINGS[:-1]


def is_launched(layout: Layout) -> bool:
    """Whether this package writes and launches a layout itself."""
    return strategy_of(layout) is not None
