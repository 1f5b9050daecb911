"""How far quantisation moved a weight, measured in what training moved it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from hf_recipes.export.bases.requantized import Requantized

if TYPE_CHECKING:
    import torch

    from hf_recipes.export.bases.read import BaseTensor


@dataclass(frozen=True)
class ErrorRatios:
    """``‖W_dequantised − W‖ / ‖ΔW‖`` of each trained weight (Frobenius norms), by the tensor's name.

    Below 1 the adapter's update is larger than what quantisation did to the weight; far above 1 the update was learnt
    around an error it may have come to make up for, and the merge into the original is another model than trained.
    """

    ratios: dict[str, float]

    def line(self) -> str:
        """One line for the terminal."""
        if not self.ratios:
            return "quantisation error: no trained weight was quantised"
        worst = max(self.ratios, key=lambda name: self.ratios[name])
        return (
            f"quantisation error against update: median {median(self.ratios.values()):.2g}, largest "
            f"{self.ratios[worst]:.2g} ({worst}), of {len(self.ratios)} weights"
        )


def quantization_error(tensors: Mapping[str, BaseTensor], update_norms: Mapping[str, float]) -> ErrorRatios:
    """Compare, weight by weight, what quantisation changed with what the adapter adds.

    Args:
        tensors: of the base with the values of training (`with_trained_values`); unquantised ones are left out.
        update_norms: ``‖ΔW‖`` of the trained weights (see `update_norm`); zero gives infinity.
    """
    ratios = {}
    for name, norm in update_norms.items():
        tensor = tensors.get(name)
        if isinstance(tensor, Requantized):
            moved = float((tensor.load().float() - tensor.original.load().float()).norm())
            ratios[name] = moved / norm if norm else float("inf")
    return ErrorRatios(ratios)


def update_norm(a: torch.Tensor, b: torch.Tensor, scale: float) -> float:
    """``‖scale · B·A‖`` without the product: the square is ``scale² · tr(BᵀB · AAᵀ)``, of two (rank, rank) matrices.

    Args:
        a: (rank, inputs).
        b: (outputs, rank).
        scale: in front.
    """
    a, b = a.double(), b.double()
    square = float(((b.T @ b) * (a @ a.T)).sum())
    return abs(scale) * max(square, 0.0) ** 0.5
