"""The memory of one rank through a run: by phase and part, and its peak."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hf_recipes.plan.geometry import Geometry
from hf_recipes.plan.layout import Layout
from hf_recipes.plan.settings import TrainingSettings

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


def estimate(
    geometry: Geometry, settings: TrainingSettings, layout: Layout = Layout(), *, device: str = "cuda"
) -> MemoryEstimate:
    """Estimate the memory of one rank (the fullest one).

    Args:
        geometry: of the model with its adapters.
        settings: the job.
        layout: how it lies over devices.
        device: ``cuda`` or ``cpu``: allocator granularity, context and which kernels run.
    """
    raise NotImplementedError
