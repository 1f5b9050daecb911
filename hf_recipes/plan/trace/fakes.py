"""Fake tensors in place of a model's: shapes, dtypes and ties as they are, on a device, without memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def put_on_fake(model: nn.Module, device: str = "cpu") -> None:
    """Replace every parameter and buffer, and the scales of packed ones; to be called within a `FakeTensorMode`.

    Args:
        model: on any device, the meta device among them; changed in place.
        device: that the new tensors say they are on.
    """
    made: dict[int, Tensor] = {}

    def fake(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            made[id(tensor)] = _like(tensor, device)
        return made[id(tensor)]

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = fake(parameter)  # type: ignore[assignment]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = fake(buffer)


def _like(tensor: Tensor, device: str) -> Tensor:
    made: Any = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    if not isinstance(tensor, nn.Parameter):
        return made
    made = nn.Parameter(made, requires_grad=tensor.requires_grad)
    for name, value in vars(tensor).items():
        setattr(made, name, value)
    _state_on_fake(getattr(made, "quant_state", None), device)
    return made


def _state_on_fake(state: Any, device: str) -> None:
    while state is not None:
        for name in ("absmax", "code", "offset"):
            if getattr(state, name) is not None:
                setattr(state, name, _like(getattr(state, name), device))
        state = state.state2
