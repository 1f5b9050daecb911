"""Checkpoint tensors that are computed together, through the parameters they are in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_recipes.core.errors import CheckFailed
from hf_recipes.export.conversion import Fusion
from hf_recipes.export.output import Output
from hf_recipes.export.values import expected_value, merged_value


@dataclass(frozen=True, eq=False)
class ConvertedGroup:
    """Checkpoint tensors that are computed together, through the parameters they are in memory.

    `outputs` are the parameters that change, by name.
    """

    fusion: Fusion
    outputs: dict[str, Output]

    @property
    def names(self) -> tuple[str, ...]:
        """Checkpoint names."""
        return tuple(self.fusion.sources)

    def compute(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The values to write, by checkpoint name."""
        parameters = self._parameters()
        merged = {}
        for name in list(parameters):
            start = parameters.pop(name)  # let go before the next one is made
            output = self.outputs.get(name)
            merged[name] = merged_value(output, start, dtype) if output else start.to(dtype)
            del start
        return self.fusion.backward(merged)

    def expected(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The same by another route, in fp32, and the room to leave for the error of sums; by checkpoint name.

        Raises:
            CheckFailed: converted and converted back, the base's own tensors are not what they were.
        """
        parameters = self._parameters()
        self._check_way_back(parameters)
        values, rooms = {}, {}
        for name in list(parameters):
            start, output = parameters.pop(name), self.outputs.get(name)
            if output:
                values[name], rooms[name] = expected_value(output, start)
            else:
                values[name], rooms[name] = start.float(), torch.zeros_like(start, dtype=torch.float32)
        expected, room = self.fusion.backward(values), self.fusion.backward(rooms)
        return {name: (expected[name], room[name]) for name in self.names}

    def _parameters(self) -> dict[str, Tensor]:
        return self.fusion.forward({name: source.load() for name, source in self.fusion.sources.items()})

    def _check_way_back(self, parameters: Mapping[str, Tensor]) -> None:
        restored = self.fusion.backward(parameters)
        for name, source in self.fusion.sources.items():
            if not torch.equal(restored.pop(name), source.load()):
                raise CheckFailed(f"'{name}' of the base does not come back from its conversion by transformers")
