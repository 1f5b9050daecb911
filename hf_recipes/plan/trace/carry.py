"""From traces of a model with few layers to one with many: each layer takes what the others do."""

from __future__ import annotations

from collections.abc import Mapping

from hf_recipes.plan.memory.estimate import MemoryEstimate
from hf_recipes.plan.settings import Checkpointing

# Layers after which checkpointing begins anew.
_PERIODS: dict[Checkpointing, int] = {"every_2": 2, "every_3": 3, "every_4": 4}


def layers_to_trace(layers: int, checkpointing: Checkpointing) -> tuple[int, int] | None:
    """The two numbers of layers to trace in place of `layers`; None where the whole model is no more than that."""
    period = _PERIODS.get(checkpointing, 1)
    few, more = 2 * period, 4 * period
    return (few, more) if layers > more else None


def carry_on(few: MemoryEstimate, more: MemoryEstimate, counts: tuple[int, int], layers: int) -> MemoryEstimate:
    """The memory of `layers` layers, on the line through those of `counts` layers, phase by phase and part by part.

    Args:
        few, more: traces of the model with fewer and with more layers.
        counts: how many.
        layers: of the whole model.
    """
    steps = (layers - counts[0]) / (counts[1] - counts[0])
    return MemoryEstimate({phase: _on_line(few.phases[phase], more.phases[phase], steps) for phase in more.phases})


def _on_line(few: Mapping[str, float], more: Mapping[str, float], steps: float) -> dict[str, float]:
    return {part: few.get(part, 0.0) + steps * (size - few.get(part, 0.0)) for part, size in more.items()}
