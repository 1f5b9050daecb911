"""The time of one optimizer step under a strategy, as far as strategies differ in it: a relative cost, not a forecast.

Every term is a roofline: the bytes or the operations of the step over the figure of the hardware that moves or computes
them. What the figures leave out (kernels below their peak, data loading) is the same for all strategies.
"""

from __future__ import annotations

from dataclasses import dataclass

from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import LAYERS_AGAIN, Checkpointing, TrainingSettings
from hf_recipes.plan.strategy.machines import LINK_EFFICIENCY, Machines

# Share of a layer's forward pass that is attention, whose result selective checkpointing keeps.
_ATTENTION_SHARE = 0.1
# What large matrix products reach of a device's dense peak (the best published fine-tuning runs; see `plan.time`).
_MATMUL_SHARE = 0.6
# Starting the kernels of one layer, forward and backward, takes so long where they are too small to hide it: about 100
# launches of 5 µs.
_LAUNCH_SECONDS = 5e-4
# Of transfer and computation that run side by side, so much of the shorter one is not hidden.
_NOT_HIDDEN = 0.15
# Reading weight, gradient and two moments in fp32 and writing all but the gradient.
ADAM_BYTES = 28
# Bytes a second that a node's CPUs reach of their memory: half of eight channels of DDR4-3200 (205 GB/s). Adam on the
# CPU (Ren et al. 2021, arXiv:2101.06840) is bound by it.
_HOST_BANDWIDTH = 1e11
# Reading 4 bits and writing 16 for each quantised weight.
_DEQUANTISED_BYTES = 2.5
# NF4 with double quantisation: 4.125 bits a weight.
_PACKED_BYTES = {"nf4": 0.516, "int8": 1.0}


@dataclass(frozen=True)
class StepCost:
    """Seconds of one optimizer step of one rank.

    Attributes:
        compute: forward and backward, the optimizer's own pass included.
        recomputation: of checkpointed layers.
        communication: what collectives add beyond what computation hides.
        offload: what transfers to the host, and the optimizer there, add.
        bubble: idle time of a pipeline.
    """

    compute: float
    recomputation: float = 0.0
    communication: float = 0.0
    offload: float = 0.0
    bubble: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.compute + self.recomputation + self.communication + self.offload + self.bubble


def recomputed(checkpointing: Checkpointing) -> float:
    """Share of the layers' forward pass that is computed once more."""
    return LAYERS_AGAIN[checkpointing] - (_ATTENTION_SHARE if checkpointing == "selective" else 0.0)


@dataclass(frozen=True)
class StepWork:
    """What a model and a method ask of every layout alike, in parameters.

    Attributes:
        active: in matrix products that one token meets.
        trained_active: those of them that get a gradient.
        trained: all that the optimizer updates.
        quantised: packed to fewer bits.
        gathered_bytes: all weights as a sharded strategy gathers them.
        gradient_bytes, wide_gradient_bytes: all gradients as they are reduced in the compute dtype, and by DDP.
        layers, hidden, queries, keys: number of layers, and the widths of hidden state, queries and keys.
    """

    active: float
    trained_active: float
    trained: int
    quantised: int
    gathered_bytes: float
    gradient_bytes: float
    wide_gradient_bytes: float
    layers: int
    hidden: int
    queries: int
    keys: int


def work_of(geometry: Geometry, settings: TrainingSettings) -> StepWork:
    """Count once what all candidates share.

    Args:
        geometry: of the model with its adapters.
        settings: dtypes and quantisation are taken from it.
    """
    products = [tensor for tensor in geometry.tensors if _multiplied(geometry, tensor)]
    compute = 2.0 if settings.autocast_dtype or settings.weights_dtype != "float32" else 4.0
    trained_bytes = 4.0 if settings.trained_dtype == "float32" else 2.0
    quantised = sum(tensor.count for tensor in geometry.tensors if tensor.linear) if settings.quantization else 0
    packed = _PACKED_BYTES.get(settings.quantization or "", compute)
    return StepWork(
        active=sum(_active(geometry, tensor) for tensor in products),
        trained_active=sum(_active(geometry, tensor) for tensor in products if tensor.trained),
        trained=geometry.trained,
        quantised=quantised,
        gathered_bytes=quantised * packed + (geometry.total - quantised) * compute,
        gradient_bytes=geometry.trained * min(compute, trained_bytes),
        wide_gradient_bytes=geometry.trained * trained_bytes,
        layers=geometry.layers,
        hidden=geometry.hidden_size,
        queries=geometry.heads * geometry.head_dim,
        keys=geometry.kv_heads * geometry.head_dim,
    )


def step_cost(geometry: Geometry, settings: TrainingSettings, layout: Layout, machines: Machines) -> StepCost:
    """Cost one optimizer step.

    Args:
        geometry: of the model with its adapters.
        settings: the job, with micro-batch, accumulation and checkpointing filled in.
        layout: how it lies over the devices.
        machines: the devices.
    """
    return cost_of(work_of(geometry, settings), settings, layout, machines)


def cost_of(work: StepWork, settings: TrainingSettings, layout: Layout, machines: Machines) -> StepCost:
    """Cost one optimizer step of what has been counted.

    Args:
        work: of the model and the method.
        settings: the job, with micro-batch, accumulation and checkpointing of the candidate.
        layout: how it lies over the devices.
        machines: the devices.
    """
    passes = settings.accumulation
    tokens = settings.micro_batch * settings.tokens / layout.context
    forward, backward = _pass_seconds(work, settings, tokens, layout, machines)
    compute = passes * (forward + backward) + _optimizer_seconds(work, layout, machines)
    recomputation = passes * recomputed(settings.checkpointing) * forward
    hidden_by = passes * (forward + backward) + recomputation
    talk = _blocking_seconds(work, settings, layout, machines, tokens)
    talk += _exposed(_collective_seconds(work, settings, layout, machines), hidden_by)
    offload = _offload_seconds(work, settings, layout, machines, tokens, hidden_by)
    bubble = (layout.pipeline - 1) / passes * hidden_by
    return StepCost(compute, recomputation, talk, offload, bubble)


def _exposed(seconds: float, hidden_by: float) -> float:
    """What a transfer beside a computation adds to its time."""
    return max(0.0, seconds - hidden_by) + _NOT_HIDDEN * min(seconds, hidden_by)


def _pass_seconds(
    work: StepWork, settings: TrainingSettings, tokens: float, layout: Layout, machines: Machines
) -> tuple[float, float]:
    """Forward and backward of one micro-batch. A frozen weight has no gradient: 2·N of the backward's 4·N FLOPs a token
    fall away. The products are bound by reading weights below the tokens where a 16-bit weight is reused less often
    than the device needs (its FLOP/s over its bandwidth)."""
    cut = layout.tensor * layout.pipeline
    attention = 2.0 * settings.tokens * work.queries * work.layers  # causal: half of 4·s·h
    speed = machines.flops * _MATMUL_SHARE * _reuse(tokens, machines) * cut
    least = work.layers * _LAUNCH_SECONDS / 3 / layout.pipeline
    unpacked = work.quantised * _DEQUANTISED_BYTES / machines.bandwidth / cut  # before each product
    forward = max(least, tokens * (2.0 * work.active + attention) / speed) + unpacked
    backward = max(2 * least, tokens * (2.0 * work.active + 2.0 * work.trained_active + 2 * attention) / speed)
    return forward, backward + unpacked


def _reuse(tokens: float, machines: Machines) -> float:
    ridge = machines.flops / machines.bandwidth
    return tokens / (tokens + ridge)


def _multiplied(geometry: Geometry, tensor: TensorShape) -> bool:
    """Whether a tensor is a factor of matrix products: embeddings are looked up, unless they are the head too."""
    return len(tensor.shape) > 1 and (tensor.part != "embeddings" or geometry.tied)


def _active(geometry: Geometry, tensor: TensorShape) -> float:
    """Parameters of a tensor that one token meets."""
    if tensor.part == "experts" and geometry.experts:
        return tensor.count * geometry.experts_per_token / geometry.experts
    return tensor.count


def _optimizer_seconds(work: StepWork, layout: Layout, machines: Machines) -> float:
    if layout.offload_optimizer:
        return 0.0
    share = work.trained / (layout.tensor * layout.pipeline)
    if layout.sharding in ("zero1", "zero2", "zero3", "fsdp"):
        share /= layout.shards
    return share * ADAM_BYTES / machines.bandwidth


def _collective_seconds(work: StepWork, settings: TrainingSettings, layout: Layout, machines: Machines) -> float:
    """Collectives over the data-parallel ranks of one optimizer step, in the ring's bytes a rank (Rajbhandari et al.
    2020, arXiv:1910.02054, section 7): an all-reduce passes 2·(n-1)/n of its bytes, a gather or a reduce-scatter half
    of that. Unlike the paper's, DeepSpeed's stages 1 and 2 reduce gradients to all ranks, and FSDP2 keeps a layer that
    is computed again gathered for its backward pass; both as counted (`benchmarks/communication.py`)."""
    if layout.data_parallel == 1:
        return 0.0
    cut, group, passes = layout.tensor * layout.pipeline, layout.shards, settings.accumulation
    ring = (group - 1) / group
    speed = machines.inside if layout.one_replica.nodes == 1 else machines.across
    if layout.sharding == "ddp":
        return 2 * ring * work.wide_gradient_bytes / cut / speed
    gradients = work.gradient_bytes / cut
    if layout.sharding == "zero1":  # gradients reduced once a step, and the new weights gathered
        return 3 * ring * gradients / speed
    if layout.sharding == "zero2":  # reduced after each micro-batch, the new weights gathered once
        return ring * (2 * passes + 1) * gradients / speed
    gathers = 2 + (recomputed(settings.checkpointing) if layout.sharding == "zero3" else 0.0)  # forward, backward
    seconds = passes * ring * (gathers * work.gathered_bytes / cut + gradients) / speed
    if layout.replicas > 1:  # every rank's shard over all replicas, the ranks of a node sharing its network
        copies = layout.replicas
        seconds += passes * 2 * (copies - 1) / copies * gradients / (LINK_EFFICIENCY * machines.network)
    return seconds


def _blocking_seconds(
    work: StepWork, settings: TrainingSettings, layout: Layout, machines: Machines, tokens: float
) -> float:
    """Messages that the next product waits for. Tensor parallelism reduces two hidden states a layer forward and five
    backward, of query, key, value, gate and up each its own, as counted; one for each half of a layer would be four in
    all (Shoeybi et al. 2019, arXiv:1909.08053, section 3). Context parallelism passes keys and values round."""
    hidden = tokens * work.hidden * 2.0
    again = recomputed(settings.checkpointing)
    seconds = 0.0
    if layout.tensor > 1:
        ring = 2 * (layout.tensor - 1) / layout.tensor
        seconds += ring * (7 + 2 * again) * hidden * work.layers / machines.inside
    if layout.context > 1:
        pair = tokens * 2 * work.keys * 2.0
        seconds += (layout.context - 1) * (3 + again) * pair * work.layers / machines.inside
    if layout.pipeline > 1:
        seconds += 2 * hidden / machines.across
    return settings.accumulation * seconds


def _offload_seconds(
    work: StepWork,
    settings: TrainingSettings,
    layout: Layout,
    machines: Machines,
    tokens: float,
    hidden_by: float,
) -> float:
    """Traffic to the host: gradients there and weights back with the optimizer, each pass's weights with offloaded
    weights, the layers' inputs with checkpoints on the host; and the optimizer's step on the CPU."""
    host = LINK_EFFICIENCY * (machines.host_link or machines.bandwidth)
    moved = 0.0
    if settings.checkpointing == "host":
        moved += settings.accumulation * 2 * tokens * work.hidden * 2.0 * work.layers
    if layout.offload_weights:
        gathers = 2 + recomputed(settings.checkpointing)
        moved += settings.accumulation * gathers * work.gathered_bytes / layout.shards
    seconds = _exposed(moved / host, hidden_by)
    if layout.offload_optimizer:
        there_and_back = 2 * work.gradient_bytes / layout.shards
        updated = work.trained / layout.shards * layout.ranks_per_node * ADAM_BYTES / _HOST_BANDWIDTH
        seconds += there_and_back / host + updated
    return seconds
