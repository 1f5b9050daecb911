"""What adapters say about one parameter, as plain data that points to tensors on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from hf_recipes.core.tensors import TensorEntry

if TYPE_CHECKING:
    from hf_recipes.export.combination import Combined
    from hf_recipes.export.experts import ExpertPair


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
class Scaling:
    """A vector of (IA)³ on disk, which multiplies a layer's outputs or, in feed-forward layers, its inputs."""

    vector: TensorEntry
    of_inputs: bool

    @property
    def size(self) -> int:
        return prod(self.vector.shape)


@dataclass
class Edit:
    """What an adapter says about one parameter, to be applied in this order.

    `base` stands for the base's own value (saved because the vocabulary was resized), `value` was trained in full,
    `lora` is added, `scaling` multiplied, `bias` is added with its factor, `rows` replace the rows of `indices`, and
    `combined` is added: the updates of several adapters put together by a rule that is no plain sum.
    """

    base: TensorEntry | None = None
    value: TensorEntry | None = None
    lora: LoraPair | None = None
    scaling: Scaling | None = None
    bias: tuple[StoredTensor, float] | None = None
    rows: TensorEntry | None = None
    indices: tuple[int, ...] = ()
    combined: Combined | None = None
    experts: ExpertPair | None = None
    names: list[str] = field(default_factory=list, compare=False)

    @property
    def is_empty(self) -> bool:
        """Whether it leaves the parameter as it is."""
        return not (self.base or self.is_trained)

    @property
    def is_trained(self) -> bool:
        """Whether it holds more than the base's own value."""
        return bool(self.value or self.lora or self.scaling or self.bias or self.rows or self.combined or self.experts)
