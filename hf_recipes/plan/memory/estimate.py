"""The memory of one rank through a run: by phase and part, and its peak."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hf_recipes.plan.geometry import Geometry, TensorShape
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.memory.evaluating import evaluation
from hf_recipes.plan.memory.optimizer import step_bytes
from hf_recipes.plan.memory.overhead import context_bytes, reserved_share, workspace_bytes
from hf_recipes.plan.memory.sharding import RankShare, local_geometry, rank_share
from hf_recipes.plan.memory.step import step_memory
from hf_recipes.plan.memory.weights import dtype_width, weight_bytes
from hf_recipes.plan.settings import TrainingSettings

_ONE_RANK = Layout()
# In the order of a run.
PHASES = ("load", "forward", "backward", "optimizer_step", "save", "evaluation")


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device by phase and part (``weights``, ``gradients``, ``optimizer``, ``activations``, ``logits``,
    ``buffers`` …); `host` is what the same rank keeps in the machine's memory by offloading.

    `phases` hold live tensors alone; `reserved_share` is what the allocator holds beyond them by fragmentation, and
    `context_bytes` the driver's and libraries' own.
    """

    phases: Mapping[str, Mapping[str, float]]
    host: Mapping[str, float] = field(default_factory=dict)
    reserved_share: float = 0.0
    context_bytes: float = 0.0

    @property
    def peak_phase(self) -> str:
        """The phase that needs most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def active_bytes(self) -> float:
        """Live tensors at the peak: what `max_memory_allocated` would say."""
        return sum(self.phases[self.peak_phase].values())

    @property
    def reserved_bytes(self) -> float:
        """With fragmentation: `max_memory_reserved`."""
        return self.active_bytes * (1 + self.reserved_share)

    @property
    def device_bytes(self) -> float:
        """All of it, context included: what must be there for the job to fit."""
        return self.reserved_bytes + self.context_bytes


def estimate_memory(
    geometry: Geometry, settings: TrainingSettings, layout: Layout = _ONE_RANK, *, device: str = "cuda"
) -> MemoryEstimate:
    """Estimate the memory of one rank (the fullest one).

    Args:
        geometry: of the model with its adapters.
        settings: the job.
        layout: how it lies over devices.
        device: ``cuda`` or ``cpu``: allocator granularity, context and which kernels run.

    Raises:
        UserError: the optimizer's memory is not known.
    """
    local = local_geometry(geometry, layout)
    share = rank_share(local, settings, layout)
    compute = replace(share.compute, tokens=-(-settings.tokens // layout.context))
    adding = settings.accumulation > 1
    step = step_memory(local, compute, device=device, gradients_left=0.0 if adding else share.gradients_left)
    trained = [tensor for tensor in local.tensors if tensor.trained]
    lasting = {
        "weights": share.weights,
        "optimizer": share.optimizer,
        "buffers": share.buffers + workspace_bytes(device),
    }
    held = {"gradients": share.gradients} if adding or not share.gradients_left else {}
    phases = {
        "load": _load(geometry, settings, share),
        "forward": _sum(lasting, held, step.forward, {"buffers": share.forward_buffers}),
        "backward": _sum(lasting, held, step.backward, {"buffers": share.backward_buffers}),
        "optimizer_step": _sum(
            lasting, {"gradients": share.gradients, "temporaries": _step(trained, share, layout, device)}
        ),
        "save": dict(lasting),
        "evaluation": _sum(lasting, evaluation(local, compute, step)),
    }
    host = _sum(share.host, _kept_on_host(local, compute) if device == "cuda" else {})
    return MemoryEstimate(phases, host, reserved_share(device), context_bytes(layout, device))


def _load(geometry: Geometry, settings: TrainingSettings, share: RankShare) -> dict[str, float]:
    """Weights. A base that is quantised while loading goes onto every rank's device whole, beside the largest tensor as
    it was stored, before anything shards it (`models.placement.device_map_for`; transformers leaves ZeRO-3's own
    loading out for it)."""
    if not settings.quantization:
        return {"weights": share.weights}
    base = [tensor for tensor in geometry.tensors if tensor.part != "adapter"]
    largest = max((tensor.count for tensor in base if tensor.linear), default=0)
    return {"weights": max(share.weights, weight_bytes(base, settings)), "temporaries": 4.0 * largest}


def _kept_on_host(geometry: Geometry, settings: TrainingSettings) -> dict[str, float]:
    """Inputs of checkpointed layers, where they are kept on the host."""
    if settings.checkpointing != "host":
        return {}
    width = dtype_width(settings.autocast_dtype or settings.weights_dtype)
    return {
        "activations": float(geometry.layers * settings.micro_batch * settings.tokens * geometry.hidden_size * width)
    }


def _step(trained: Sequence[TensorShape], share: RankShare, layout: Layout, device: str) -> float:
    if layout.offload_optimizer or layout.offload_weights:
        return 0.0
    shards = layout.shards if layout.sharding not in ("none", "ddp") else 1
    return share.step + step_bytes(trained, share.compute, device=device) / shards


def _sum(*parts: Mapping[str, float]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)
