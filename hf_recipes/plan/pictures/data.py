"""What the pictures of a plan show, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class MemoryBar:
    """Memory of one rank at its peak under one strategy: bytes by part, which add up to what the device must have.

    Attributes:
        label: of the strategy (``FSDP × 8, all layers recomputed``).
        parts: ``weights``, ``gradients``, ``optimizer``, ``activations``, ``logits``, ``buffers``, ``context`` …
        phase: when the peak is.
        chosen: this is the one taken.
    """

    label: str
    parts: Mapping[str, float]
    phase: str
    chosen: bool = False

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class DeviceRow:
    """One kind of device side by side with others: what was chosen on it, hours and cost as (low, expected, high).

    `hours` is None where nothing fits; `cost` None where no price is known; `why` one sentence.
    """

    device: str
    devices: int
    memory_bytes: float
    needed_bytes: float
    strategy: str
    hours: tuple[float, float, float] | None
    cost: tuple[float, float, float] | None
    kwh: float | None
    why: str


@dataclass(frozen=True)
class LengthGrid:
    """Bytes a device must have, for each row length (outer) and micro-batch (inner)."""

    tokens: Sequence[int]
    micro_batches: Sequence[int]
    needed_bytes: Sequence[Sequence[float]]


@dataclass(frozen=True)
class PlanView:
    """A whole plan as it is shown.

    Attributes:
        title: model, method, data in a line.
        facts: label → text, in order (parameters, trained, global batch, steps, tokens, FLOPs …).
        sentence: what is to be done, or why nothing fits.
        parameters: count by part of the model.
        device: name of the device planned for, with `limit_bytes` usable memory.
        bars: one a strategy, the chosen one first.
        not_taken: (strategy, why not).
        devices: one row a kind of device; empty where only one is planned for.
        grid: memory over length and micro-batch, or None.
    """

    title: str
    facts: Mapping[str, str]
    sentence: str
    parameters: Mapping[str, int]
    device: str
    limit_bytes: float
    bars: Sequence[MemoryBar]
    not_taken: Sequence[tuple[str, str]] = ()
    devices: Sequence[DeviceRow] = ()
    grid: LengthGrid | None = None
