"""The two halves of low-rank updates, as they lie on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from hf_recipes.core.tensors import TensorEntry


class StoredTensor(Protocol):
    """A tensor not yet in memory: one of a file, or one made of several when it is loaded (`combination.Stacked`)."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def load(self) -> Any:
        """Read it as a CPU `torch.Tensor`."""


@dataclass(frozen=True)
class LoraPair:
    """The two halves of one update on disk, its DoRA magnitude if any, and the factor in front.

    Of a linear layer `a` is (rank, inputs) and `b` (outputs, rank); of an embedding (rank, words) and (width, rank); of
    a convolution (rank, inputs, *kernel) and (outputs, rank, 1, …).
    """

    a: StoredTensor
    b: StoredTensor
    scale: float
    embedding: bool
    magnitude: TensorEntry | None = None

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def outputs_inputs(self) -> tuple[int, int]:
        return self.b.shape[0], self.a.shape[1]

    @property
    def kernel(self) -> tuple[int, ...]:
        """Of a convolution; empty for all else."""
        return self.a.shape[2:]


@dataclass(frozen=True)
class ExpertPair:
    """The two halves of the updates of all experts of a parameter, and the factor in front.

    `a` is (experts·rank, inputs), `b` (outputs, rank·experts); the parameter (experts, outputs, inputs) or, when
    `transposed`, (experts, inputs, outputs).
    """

    a: StoredTensor
    b: StoredTensor
    scale: float
    experts: int
    transposed: bool
