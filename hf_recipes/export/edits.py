"""What adapters say about one parameter, as plain data that points to tensors on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from hf_recipes.core.tensors import TensorEntry
from hf_recipes.export.combination import Combined
from hf_recipes.export.pairs import ExpertPair, LoraPair, StoredTensor


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
