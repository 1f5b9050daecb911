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
        host_bytes: what the same rank keeps in the machine's memory by offloading.
        fits: where more than `total` and the device's memory decides it (the host's memory, a margin); None where not.
    """

    label: str
    parts: Mapping[str, float]
    phase: str
    chosen: bool = False
    host_bytes: float = 0.0
    fits: bool | None = None

    def fits_in(self, limit_bytes: float) -> bool:
        """Whether it fits in a device of so much memory."""
        return self.total <= limit_bytes if self.fits is None else self.fits

    @property
    def total(self) -> float:
        """Bytes in all."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class DeviceRow:
    """One kind of device side by side with others: what was chosen on it, hours and cost as (low, expected, high).

    `hours` is None where nothing fits or the length of the run is not known; `cost` None where no price is known; `why`
    one sentence; `fits` None where `needed_bytes` and `memory_bytes` decide it.
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
    fits: bool | None = None

    @property
    def fitting(self) -> bool:
        """Whether a strategy fits on it."""
        return self.needed_bytes <= self.memory_bytes if self.fits is None else self.fits


@dataclass(frozen=True)
class LengthGrid:
    """Bytes a device must have, for each row length (outer) and micro-batch (inner), both ascending; `chosen` is the
    plan's own (length, micro-batch), which need not be among them."""

    tokens: Sequence[int]
    micro_batches: Sequence[int]
    needed_bytes: Sequence[Sequence[float]]
    chosen: tuple[int, int] | None = None


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
        currency: of all costs (``$``, ``EUR``).
        notes: sentences that close the plan: where prices and peaks are from and of when, what was assumed.
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
    currency: str = "$"
    notes: Sequence[str] = ()

    @property
    def shown_bar(self) -> MemoryBar | None:
        """The strategy told in detail: the one chosen, else the one that comes nearest to fitting."""
        chosen = [bar for bar in self.bars if bar.chosen]
        return chosen[0] if chosen else min(self.bars, key=lambda bar: bar.total, default=None)

    @property
    def fits(self) -> bool:
        """Whether something was chosen and stays within the limit."""
        bar = self.shown_bar
        return bar is not None and bar.chosen and bar.fits_in(self.limit_bytes)
