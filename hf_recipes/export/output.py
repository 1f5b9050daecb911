"""One tensor that a merge will write."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch

from hf_recipes.core.tensors import TensorEntry, TensorSpec
from hf_recipes.export.bases.read import BaseTensor
from hf_recipes.export.edits import Edit


class Group(Protocol):
    """Checkpoint tensors that are computed together (`converted_group.ConvertedGroup`)."""

    @property
    def names(self) -> tuple[str, ...]:
        """Checkpoint names."""

    def compute(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The values to write, by checkpoint name."""

    def expected(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """The same by another route, in fp32, and the room to leave for the error of sums; by checkpoint name."""


@dataclass(frozen=True)
class Output:
    """One tensor to be written: its form, the tensor it comes from, its file, and the edit if there is one.

    A head that is no longer tied comes from the embedding; a head that training added comes from the adapter. Tensors
    that are one parameter in memory (fused experts) carry the same `group`, which computes them together.
    """

    spec: TensorSpec
    source: BaseTensor
    shard: str
    edit: Edit | None = None
    transposed: bool = False
    group: Group | None = None

    @property
    def is_new(self) -> bool:
        """Whether the base has nothing in its place."""
        return self.edit is not None and self.source is self.edit.value

    @property
    def scaled_dimension(self) -> int:
        """The dimension of the tensor along which an (IA)³ vector lies."""
        assert self.edit and self.edit.scaling, self.spec.name
        return int(self.edit.scaling.of_inputs != self.transposed)

    @property
    def start(self) -> BaseTensor:
        """The tensor on disk that LoRA, a vector or rows are applied to."""
        edit = self.edit or Edit()
        return edit.value or edit.base or self.source

    @property
    def elements(self) -> int:
        return prod(self.spec.shape)

    @property
    def is_copy(self) -> bool:
        """Whether the base's bytes are written as they are."""
        is_plain = self.edit is None and self.group is None and isinstance(self.source, TensorEntry)
        return is_plain and self.source.dtype == self.spec.dtype
