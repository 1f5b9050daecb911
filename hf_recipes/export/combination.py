"""How the updates of several adapters become one: the rule, and what it is applied to, as plain data.

A task tensor is the whole update of one parameter, ``ΔWᵢ = scaleᵢ·Bᵢ·Aᵢ``, as in the papers (task arithmetic: Ilharco
et al. 2023, arXiv:2212.04089; TIES: Yadav et al. 2023, arXiv:2306.01708; DARE: Yu et al. 2024, arXiv:2311.03099).
PEFT's `add_weighted_adapter` applies the same functions to the Aᵢ and the Bᵢ apart, each with the square root of its
weight, and multiplies the results; the product then holds terms BᵢAⱼ that no adapter was trained to have. Only its
``cat`` and ``svd`` keep to the updates, and ``linear`` here equals ``cat``.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

from hf_recipes.core.errors import UserError
from hf_recipes.export.pairs import LoraPair, StoredTensor

METHODS = ("linear", "ties", "dare_linear", "dare_ties", "magnitude_prune")


@dataclass(frozen=True)
class Combination:
    """How to combine adapters.

    Attributes:
        method: one of `METHODS`. ``linear`` is the weighted sum.
        weights: one for each adapter, none of them 0; a negative one takes an update away. Empty for all 1.
        density: share of each update's elements that is kept, above 0 and at most 1; for all methods but ``linear``.
        majority_sign_method: how TIES elects a sign: ``total`` by the sum, ``frequency`` by the count.
        seed: of DARE's random choice, which is drawn anew for each parameter from this and the parameter's name.

    Raises:
        UserError: a value out of these bounds.
    """

    method: str = "linear"
    weights: tuple[float, ...] = ()
    density: float | None = None
    majority_sign_method: str = "total"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise UserError(f"combine: '{self.method}' is none of {', '.join(METHODS)}.")
        if any(not math.isfinite(weight) or weight == 0 for weight in self.weights):
            raise UserError(
                f"weights: {list(self.weights)} must be numbers other than 0; leave out what counts nothing."
            )
        if self.method == "linear" and self.density is not None:
            raise UserError("density: a linear combination keeps every element; give it with ties, dare_… or leave it.")
        if self.method != "linear" and (self.density is None or not 0 < self.density <= 1):
            raise UserError(f"density: {self.method} needs the share of elements to keep, above 0 and at most 1.")
        if self.majority_sign_method not in ("total", "frequency"):
            raise UserError(f"majority_sign_method: '{self.majority_sign_method}' is neither total nor frequency.")

    @property
    def is_sum(self) -> bool:
        """Whether it adds the updates as they are, so that the sum is low-rank too."""
        return self.method == "linear"


@dataclass(frozen=True)
class Stacked:
    """The same half of several updates, each times its factor, side by side along `dimension`. The product of stacked
    halves is ``Σ factorᵢ·Bᵢ·Aᵢ``, so a weighted sum of low-rank updates is one of the summed rank."""

    parts: tuple[StoredTensor, ...]
    factors: tuple[float, ...]
    dimension: int

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def shape(self) -> tuple[int, ...]:
        first = self.parts[0].shape
        size = sum(part.shape[self.dimension] for part in self.parts)
        return (*first[: self.dimension], size, *first[self.dimension + 1 :])

    def load(self) -> Any:
        """In fp32."""
        import torch

        loaded = [times(part, factor) for part, factor in zip(self.parts, self.factors, strict=True)]
        return torch.cat(loaded, dim=self.dimension)


@dataclass(frozen=True)
class Summed:
    """Several vectors, each times its factor, added up."""

    parts: tuple[StoredTensor, ...]
    factors: tuple[float, ...]

    @property
    def name(self) -> str:
        return self.parts[0].name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].shape

    def load(self) -> Any:
        """In fp32."""
        return sum(times(part, factor) for part, factor in zip(self.parts, self.factors, strict=True))


def times(part: StoredTensor, factor: float) -> Any:
    """The tensor, loaded, times `factor`, in fp32."""
    tensor = part.load().float()
    return tensor if factor == 1 else tensor * factor


@dataclass(frozen=True)
class Combined:
    """The updates of one parameter by several adapters, to be combined by a rule that is no plain sum.

    Attributes:
        parameter: its in-memory name.
        updates: low-rank ones, or, of a bias, vectors with their factors.
        weights: one for each update.
        rule: how; its own weights, of all adapters, are not used here.
    """

    parameter: str
    updates: tuple[LoraPair, ...] | tuple[tuple[StoredTensor, float], ...]
    weights: tuple[float, ...]
    rule: Combination

    @property
    def pair(self) -> LoraPair | None:
        """The first of low-rank updates; all have its shape."""
        first = self.updates[0]
        return first if isinstance(first, LoraPair) else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a bias."""
        first = self.updates[0]
        assert isinstance(first, tuple), self.parameter
        return first[0].shape

    @property
    def seed(self) -> int:
        """Of this parameter's random choice: no other parameter's, whatever the order or the threads."""
        digest = hashlib.sha256(f"{self.rule.seed}:{self.parameter}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1
