"""How many parameters a model has: in all, by part, trained, and at work for each token."""

from __future__ import annotations

from dataclasses import dataclass

from hf_recipes.plan.geometry import PARTS, Geometry


@dataclass(frozen=True)
class ParameterCounts:
    """Counts of a geometry.

    Attributes:
        total: all of them, tied ones once, adapters included.
        trained: those that get a gradient.
        active: those that a token meets: of a layer's experts only the ones it is sent to.
        by_part: of each part that there is, in the order of `geometry.PARTS`.
        trained_by_part: the same of the trained ones.
    """

    total: int
    trained: int
    active: int
    by_part: dict[str, int]
    trained_by_part: dict[str, int]

    @property
    def trained_share(self) -> float:
        """Trained ones among all, 0 to 1."""
        return self.trained / self.total if self.total else 0.0


def count_parameters(geometry: Geometry) -> ParameterCounts:
    """Count exactly, from shapes."""
    return ParameterCounts(
        total=geometry.total,
        trained=geometry.trained,
        active=active_parameters(geometry),
        by_part=_by_part(geometry, trained_only=False),
        trained_by_part=_by_part(geometry, trained_only=True),
    )


def active_parameters(geometry: Geometry) -> int:
    """Parameters that one token meets, the embedding table included (as makers of mixtures of experts count them)."""
    experts = sum(tensor.count for tensor in geometry.tensors if tensor.part == "experts")
    if not geometry.experts:
        return geometry.total
    return geometry.total - experts + experts * geometry.experts_per_token // geometry.experts


def _by_part(geometry: Geometry, *, trained_only: bool) -> dict[str, int]:
    counts = {
        part: sum(
            tensor.count for tensor in geometry.tensors if tensor.part == part and (tensor.trained or not trained_only)
        )
        for part in PARTS
    }
    return {part: count for part, count in counts.items() if count}
